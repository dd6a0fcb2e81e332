"""Exchange of arrays between workers outside a step, over any sum of arrays."""

import hashlib
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainer.network.member import Member


class ChiefArrays(NamedTuple):
    """Arrays that all workers go on with, and the largest difference from them."""

    arrays: list[np.ndarray]
    """The chief's."""
    digest: str
    others: list[int]
    """Ranks whose arrays differed."""
    most: float
    """The largest difference of a number, relative to the largest of its array."""


class ArrayGroup:
    """Workers that can sum arrays."""

    member: Member

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum of an array over all workers, with the same shape and type (float32 or int32)."""
        raise NotImplementedError

    def from_chief(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """See `from_worker`."""
        return self.from_worker(0, arrays)

    def from_worker(self, rank: int, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """One worker's arrays on every worker, bit for bit; nothing is sent if all workers have the same already."""
        if len(set(self.digests(digest(arrays)))) == 1:
            return list(arrays)
        data = b"".join(array.tobytes() for array in arrays)
        bits = np.frombuffer(data + bytes(-len(data) % 4), np.int32)
        values = self.sum(bits if self.member.rank == rank else np.zeros_like(bits)).tobytes()
        ends = np.cumsum([array.nbytes for array in arrays]).tolist()
        parts = [values[end - array.nbytes : end] for end, array in zip(ends, arrays, strict=True)]
        return [np.frombuffer(part, array.dtype).reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]

    def chief_arrays(self, arrays: Sequence[np.ndarray]) -> ChiefArrays:
        """The chief's arrays, if those of any worker differ from them, and by how much."""
        chief, *others = self.digests(digest(arrays))
        different = [rank for rank, one in enumerate(others, 1) if one != chief]
        if not different:
            return ChiefArrays(list(arrays), chief, [], 0.0)
        chiefs = self.from_chief(arrays)
        apart = np.array([max(map(_apart, arrays, chiefs))], np.float32)
        every = self.gather(apart.view(np.int32))[:, 0].view(np.float32)
        return ChiefArrays(chiefs, chief, different, float(every.max()))

    def text_from_chief(self, text: str) -> str:
        """The chief's text on every worker."""
        return self.text_from(0, text)

    def text_from(self, rank: int, text: str) -> str:
        """One worker's text on every worker."""
        return self.texts(text if self.member.rank == rank else "")[rank]

    def texts(self, text: str) -> list[str]:
        """Every worker's text, in order of rank; not all may be empty."""
        data = text.encode()
        lengths = self.gather([len(data)])[:, 0].tolist()
        codes, start = np.zeros(sum(lengths), np.int32), sum(lengths[: self.member.rank])
        codes[start : start + len(data)] = np.frombuffer(data, np.uint8)
        whole = self.sum(codes).astype(np.uint8).tobytes()
        return [whole[end - length : end].decode() for length, end in zip(lengths, itertools.accumulate(lengths), strict=True)]

    def gather(self, row: Sequence[int] | np.ndarray) -> np.ndarray:
        """Every worker's row of int32 numbers, as a table `[workers, columns]`."""
        table = np.zeros((self.member.workers, len(row)), np.int32)
        table[self.member.rank] = row
        return self.sum(table)

    def digests(self, digest: str) -> list[str]:
        """Every worker's hex SHA-256, in order of rank."""
        return [row.tobytes().hex() for row in self.gather(np.frombuffer(bytes.fromhex(digest), np.int32))]


def _apart(mine: np.ndarray, chiefs: np.ndarray) -> float:
    if not np.issubdtype(mine.dtype, np.floating):
        return float(not np.array_equal(mine, chiefs))
    largest = np.abs(chiefs).max(initial=0.0) or 1.0
    return float(np.abs(mine.astype(np.float64) - chiefs).max(initial=0.0) / largest)


def digest(arrays: Sequence[np.ndarray]) -> str:
    """Hex SHA-256 over the bytes of arrays, in order."""
    state = hashlib.sha256()
    for array in arrays:
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()
