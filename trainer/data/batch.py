"""Types that the parts of the input pipeline pass on: examples, a call's steps, a worker's part of a batch."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from trainer.data.spec import Spec, mapped


@dataclass(frozen=True)
class Call:
    """One call's steps, counted from the start of its epoch."""

    first: int
    steps: int
    taken_apart: bool = False
    """True for a single profiled step: its parts are timed separately."""


class Batch(NamedTuple):
    """One worker's part of a step; for several steps each field but `asks` has an extra leading dimension."""

    data: Any
    """Argument of Keras' `train_step`: `(x, y)` or `(x, y, sample_weight)`, each a nest of arrays `[batch, ...]`."""
    weights: Any
    """`[batch]` float32; 0 leaves an example out, such as the placeholder of a worker whose share is empty."""
    places: Any
    """`[batch]` int32: position of each example in the global batch."""
    total: Any
    """float32: size of the global batch."""
    number: Any
    """int32: number of the step in the run, from 0."""
    asks: Any
    """float32: what this worker asks of all (`step_sums.STOP`, `SAVE`, or their sum), or 0."""
    sides: Any = ()
    """`[len(spec.varying)]` int32: length of each dimension that varies, the longest of the global batch; `data` may be padded further."""

    def at(self, index: Any) -> "Batch":
        """One step of several."""
        fields = {name: mapped(lambda array: array[index], getattr(self, name)) for name in self._fields if name != "asks"}
        return self._replace(**fields)


class Examples(Protocol):
    """Random access to the examples of one split."""

    spec: Spec

    def __len__(self) -> int:
        """The number of examples."""

    def gather(self, indices: np.ndarray) -> Any:
        """Examples as Keras' `fit` takes them: a tuple of nests of arrays `[len(indices), ...]`."""
