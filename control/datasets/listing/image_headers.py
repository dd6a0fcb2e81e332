"""Headers of image files, read without decoding the image; and the bytes of files small enough to be images."""

import io
from pathlib import Path

from PIL import Image

from trainer.data.images import FORMATS, GREY

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif"})

LARGEST = 2**30
"""Bytes of an image file: Pillow reads no image of more than 179 million pixels, which need less even without compression."""

ORIENTATION, LYING = 0x0112, 5
"""EXIF's tag, and its first value that swaps height and width."""


def read_image(path: Path) -> bytes:
    """The bytes of an image file; OSError, or ValueError if it has more than any image: its name may be all that it has of one."""
    if (size := path.stat().st_size) > LARGEST:
        raise ValueError(f"it has {size:,} bytes; at most {LARGEST:,} are read")
    return path.read_bytes()


def stated_size(data: bytes) -> tuple[int, int]:
    """Width and height that an image file's header states; (0, 0) if it is none that `decode` reads. Nothing is decoded."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return image.size
    except Exception:  # `decode` says what is wrong
        return 0, 0


def shape_of(data: bytes) -> tuple[int, int, int]:
    """Height, width and channels that `decode` would return, from the file's header alone; ValueError if it is no image."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            turned = image.getexif().get(ORIENTATION, 1) >= LYING
            channels = 1 if image.mode.startswith("I") or image.mode in GREY else 3
    except Exception as error:
        raise ValueError(str(error)) from None
    return (width, height, channels) if turned else (height, width, channels)
