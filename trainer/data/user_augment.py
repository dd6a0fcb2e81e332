"""A function of the user's own that changes each training example: `augment(x, y, seed)`, in the input pipeline's threads.

It gets one example, not a batch: a batch is divided over the workers, and what is drawn for an example must not depend on how.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.common.errors import ConfigError, DatasetError
from trainer.data.spec import STRING, Leaf, Spec
from trainer.user_code import user_function
from trainer.user_code.user_function import Function

if TYPE_CHECKING:
    from trainer.data.batch import Examples

TASKS = 4
"""Tasks per thread and call: more than one, because examples differ."""


class UserAugment:
    """Examples that a function changes, one by one."""

    def __init__(self, given: dict[str, str], spec: Spec, threads: int | None = None):
        """Load the function for examples of that spec; it runs in `threads` threads, by default one per core that may be used."""
        self._function = Function.of(given)
        self._call, self._spec = user_function.load("dataset", self._function), spec
        self._count = threads or len(os.sched_getaffinity(0))
        self._threads = ThreadPoolExecutor(self._count, thread_name_prefix="augment")

    def gather(self, examples: "Examples", indices: np.ndarray, seeds: np.ndarray, sides: Sequence[int]) -> tuple[Any, ...]:
        """The examples at `indices`, each changed with its seed of `seeds` `[len(indices), 2]`, and padded to `sides` (`spec.varying`).

        Raises:
            ConfigError: the function fails, or changes the structure, a type or a shape; a dimension that varies may become shorter.
        """
        tasks = np.array_split(np.arange(len(indices)), min(len(indices), TASKS * self._count) or 1)
        # Padding belongs to a batch, so an example that varies is taken alone.
        whole = None if self._spec.varying else self._spec.unpack(examples.gather(indices))

        def work(positions: np.ndarray) -> list[list[np.ndarray]]:
            return [self._changed(self._row(examples, whole, indices, position), indices, seeds, position) for position in positions]

        rows = [row for done in self._threads.map(work, tasks) for row in done]
        return self._spec.pack(list(self._stacked(rows, sides)))

    def _row(self, examples: "Examples", whole: list[np.ndarray] | None, indices: np.ndarray, position: int) -> list[Any]:
        if whole is not None:
            return [values[position] for values in whole]
        return [values[0] for values in self._spec.unpack(examples.gather(indices[position : position + 1]))]

    def _changed(self, row: list[Any], indices: np.ndarray, seeds: np.ndarray, position: int) -> list[np.ndarray]:
        where = f"dataset={self._function.called}"
        x, *others = self._spec.pack(row)
        try:
            result = self._call(x, *others[:1], seeds[position])
        except Exception as error:
            line = user_function.line(error, self._function)
            raise ConfigError(f"{where}{line}: for example {indices[position]}: {type(error).__name__}: {error}") from error
        given = "(x, y)" if others else "x"
        if others and not (isinstance(result, tuple) and len(result) == len(others[:1]) + 1):
            raise ConfigError(f"{where}: for example {indices[position]} it returns {result!r:.60}; it must return {given}")
        try:
            values = self._spec.unpack([*(result if others else [result]), *others[1:]])
        except DatasetError as error:
            raise ConfigError(f"{where}: for example {indices[position]}: {error}; it must return {given} as it was given") from None
        return [
            _checked(value, leaf, before, f"{where}: for example {indices[position]} it returns")
            for value, leaf, before in zip(values, self._spec.leaves, row, strict=True)
        ]

    def _stacked(self, rows: list[list[np.ndarray]], sides: Sequence[int]) -> Iterator[np.ndarray]:
        varying = iter(sides)
        for leaf, values in zip(self._spec.leaves, zip(*rows, strict=True), strict=True):
            shape = [len(values), *(int(next(varying)) if side is None else side for side in leaf.shape)]
            stacked = np.full(shape, b"", object) if leaf.dtype == STRING else np.zeros(shape, leaf.dtype)
            for number, value in enumerate(values):
                place: tuple[int | slice, ...] = (number, *map(slice, value.shape))
                stacked[place] = value if value.shape else value.item()
            yield stacked


def _checked(value: Any, leaf: Leaf, before: Any, place: str) -> np.ndarray:
    """A value in its leaf's type; ConfigError if that would change it, or it is larger than the one `before`."""
    try:
        array = _strings(value) if leaf.dtype == STRING else np.asarray(value)
    except (TypeError, ValueError):
        array = np.asarray(None)
    kind = leaf.dtype == STRING or np.can_cast(array.dtype, leaf.dtype, "same_kind")
    most = np.shape(before)
    fits = array.ndim == len(most) and all(
        side <= limit if varies is None else side == limit for side, limit, varies in zip(array.shape, most, leaf.shape, strict=True)
    )
    if not kind or not fits:
        has = "text" if array.dtype.kind == "O" and leaf.dtype == STRING else array.dtype
        shorter = ", or shorter where it varies" if leaf.varies else ""
        raise ConfigError(f"{place} {leaf.name} {has} {list(array.shape)}; it must stay {leaf.dtype} {list(most)}{shorter}")
    if leaf.dtype == STRING:
        return array
    made = array.astype(leaf.dtype)
    if array.dtype.kind in "iu" and not np.array_equal(made, array):
        raise ConfigError(f"{place} {leaf.name} numbers that {leaf.dtype} does not hold; clip them first, as by np.clip")
    return made


def _strings(value: Any) -> np.ndarray:
    array = np.asarray(value, object)
    encoded = np.empty(array.size, object)
    encoded[:] = [text.encode() if isinstance(text, str) else text for text in array.ravel()]
    if not all(isinstance(text, bytes) for text in encoded):
        raise TypeError
    return encoded.reshape(array.shape)
