"""Bytes of tiny files to test with."""

import io
import struct

import numpy as np
from PIL import Image


def image_bytes(number: int, size: tuple[int, int] = (6, 5), kind: str = "PNG") -> bytes:
    """A small colour image whose pixels follow from `number`."""
    pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def idx_bytes(array: np.ndarray) -> bytes:
    """A uint8 array in MNIST's format."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
