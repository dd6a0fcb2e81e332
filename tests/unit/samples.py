"""Bytes of tiny files to test with."""

import io
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trainer.host import sealed_files

ROOT = Path(__file__).resolve().parents[2]
HISTORY = ("epoch", "loss", "accuracy", "val_loss", "val_accuracy", "learning_rate", "seconds", "images_per_s")
"""Columns of a classifier's history.csv."""


def image_bytes(number: int, size: tuple[int, int] = (6, 5), kind: str = "PNG") -> bytes:
    """A small colour image whose pixels follow from `number`."""
    pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def idx_bytes(array: np.ndarray) -> bytes:
    """A uint8 array in MNIST's format."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()


def write_state(path: Path, text: str = "state") -> None:
    """A whole file of training state, as far as anybody looks who does not train."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, text=np.array(text))
    sealed_files.seal(path)


def read_state(path: Path) -> str:
    """What was written there."""
    with np.load(path) as stored:
        return str(stored["text"])


def flip_a_bit(path: Path) -> None:
    """Damage a file in place: its size, and its time, stay."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def real_data(name: str) -> Path:
    """A file of real data, where this machine has it: in LOCKSTEP_TEST_DATA, or in `shared/data` beside the project."""
    folder = Path(os.environ.get("LOCKSTEP_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / name).is_file():
        pytest.skip(f"{folder / name} is not there; LOCKSTEP_TEST_DATA says where real data is")
    return folder / name


ERRORS = {
    "low": -2.0,
    "high": 2.0,
    "mean": 0.1,
    "mean_absolute": 0.5,
    "median_absolute": 0.4,
    "absolute_95": 1.5,
    "largest": 9.0,
    "counts": [1, 5, 2],
    "below": 1,
    "above": 0,
    "values": 9,
    "not_finite": 0,
}
"""What an evaluation says of the errors of numbers."""
