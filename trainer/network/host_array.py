"""State kept outside TensorFlow, in arrays that compiled loops update in place."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

SPLIT_FROM = 2**16
"""A matrix with at least this many elements is worth more than one thread."""


def aligned(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Zeros of a shape, aligned to 64 bytes: TensorFlow takes over such an array without a copy."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


class HostArray:
    """A float32 array that is saved and restored like a `tf.Variable`."""

    def __init__(self, shape: tuple[int, ...]):
        self.array = aligned(shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.array.shape

    def numpy(self) -> np.ndarray:
        """A copy."""
        return self.array.copy()

    def assign(self, values: np.ndarray) -> None:
        """Overwrite all elements."""
        self.array[...] = values


class RowPool:
    """Runs a compiled loop over the rows of a matrix on several threads, always split at the same rows."""

    def __init__(self, threads: int):
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kernel") if threads > 1 else None

    def parts(self, rows: int, columns: int) -> list[tuple[int, int]]:
        """First row and end row (exclusive) of each thread's share."""
        threads = min(self._threads, rows) if rows * columns >= SPLIT_FROM else 1
        return [(rows * part // threads, rows * (part + 1) // threads) for part in range(threads)]

    def run(
        self, loop: Callable[..., None], parts: list[tuple[int, int]], *arguments: Any, each: list[tuple[Any, ...]] | None = None
    ) -> None:
        """Call `loop(first, last, *arguments, *each[part])` for every part."""
        calls = [(*part, *arguments, *extra) for part, extra in zip(parts, each or [()] * len(parts), strict=True)]
        if self._pool is None or len(calls) == 1:
            for call in calls:
                loop(*call)
            return
        for _ in self._pool.map(loop, *zip(*calls, strict=True)):
            pass  # wait for each part, and raise its exception here
