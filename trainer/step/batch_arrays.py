"""Arrays of a step: padded to a full call, blank, trimmed, and their signature for tracing."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.data.batch import Batch
from trainer.data.spec import Spec


def full(data: tuple[Any, ...], total: int | None = None, spec: Spec | None = None) -> Batch:
    """A `Batch` of several steps, starting at step 0, in which every example counts.

    Args:
        data: the steps' data.
        total: size of the global batch, if larger.
        spec: specification of the examples, if a dimension varies.
    """
    steps, batch = tf.nest.flatten(data)[0].shape[:2]
    places = np.tile(np.arange(batch, dtype=np.int32), (steps, 1))
    totals, numbers = np.full(steps, total or batch, np.float32), np.arange(steps, dtype=np.int32)
    sides = [spec.unpack(data)[leaf].shape[2 + axis] for leaf, axis in spec.varying] if spec else []
    every = np.tile(np.array(sides, np.int32), (steps, 1))
    return Batch(data, np.ones((steps, batch), np.float32), places, totals, numbers, np.float32(0), every)


def blank(spec: Spec, count: int = 1, sides: Sequence[int] | None = None) -> Batch:
    """The batch of one step with `count` examples of zeros or empty strings; `sides`: lengths of varying dimensions, by default 1."""
    lengths = iter(sides or [1] * len(spec.varying))
    arrays = [
        np.zeros(
            (1, count, *(next(lengths) if size is None else size for size in leaf.shape)),
            object if leaf.dtype == "string" else leaf.dtype,
        )
        for leaf in spec.leaves
    ]
    return full(spec.pack([np.full(array.shape, b"", object) if array.dtype == object else array for array in arrays]), spec=spec)


def trimmed(spec: Spec, batch: Batch) -> Batch:
    """One step's batch, padded to its own longest example; a call of several steps is padded to the longest example of all steps."""
    if not spec.varying:
        return batch
    values = spec.unpack(batch.data)
    for place, (leaf, axis) in enumerate(spec.varying):
        values[leaf] = values[leaf][(*[slice(None)] * (1 + axis), slice(batch.sides[place]))]
    return batch._replace(data=spec.pack(values))


def signature(spec: Spec, steps: int) -> Batch:
    """TensorSpecs of a batch for tracing; `steps` is 1 to include a dimension for several steps, else 0."""
    several = [None] * steps
    fields = {
        "weights": ([*several, None], tf.float32),
        "places": ([*several, None], tf.int32),
        "total": (several, tf.float32),
        "number": (several, tf.int32),
        "asks": ([], tf.float32),
        "sides": ([*several, len(spec.varying)], tf.int32),
    }
    return Batch(data_signature(spec, several), **{name: tf.TensorSpec(shape, kind) for name, (shape, kind) in fields.items()})


def data_signature(spec: Spec, several: Sequence[None] = ()) -> tuple[Any, ...]:
    """TensorSpecs of any number of examples, with further leading dimensions."""
    return spec.pack([tf.TensorSpec([*several, None, *leaf.shape], leaf.dtype) for leaf in spec.leaves])
