"""Predict examples with a snapshot on one host: its part of the rows, in order. Their targets need not be known."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.checkpoint import starting_weights
from trainer.common.errors import ConfigError, LockstepError
from trainer.common.files import read_json
from trainer.config import loading
from trainer.config import schema as configs
from trainer.data.columns import Columns
from trainer.data.spec import Leaf, Spec
from trainer.evaluation import measures, outputs
from trainer.rundir.metrics_log import Metrics
from trainer.rundir.phases import Phase

BLOCK = 256
"""Rows of a batch. Hosts take whole batches in turn, so a row is in the same batch, and padded like it, on any number of hosts."""
SPLIT = "test"
"""Under this name a host's part is stored."""
PROBABILITY = "probability"
"""The output of a classifier of images: softmax of its logits."""
CONFIG, MODEL, DATA, JOB = "config.yml", "model.keras", "data", "job.json"
"""In the folder of a prediction: the run's configuration, the snapshot, a folder with columns, and `spec`, `classes` and `rows` in it."""
NOTED = 20
"""Batches between two notes of progress."""


def output_name(number: int) -> str:
    """File of an output, in the order of `Predictor.outputs`: an array `[rows, ...]` in NumPy's format."""
    return f"output-{number:04d}.npy"


@dataclass(frozen=True)
class Predictor:
    """A model and its predictions."""

    model: Any
    call: Any
    """Traced: `(x,)` -> a list of arrays `[n, ...]`."""
    outputs: tuple[Leaf, ...]
    """Name, type and shape of each; the types need not be those of a dataset."""
    goals: tuple[measures.Goal | None, ...]
    """Goal of each output of a compiled model."""


def build(config: configs.Config, classes: int, spec: Spec) -> Predictor:
    """The predictor of a run; `spec` is that of the examples that it was trained on."""
    import tensorflow as tf

    from trainer.step import batch_arrays, build_step

    model, compiled = build_step.build_model(config, classes, spec)
    every: list[outputs.Output] = []

    @tf.function(input_signature=[batch_arrays.data_signature(spec.inputs)], autograph=False)
    def call(data: Any) -> list[Any]:
        if compiled:
            every[:] = outputs.of(model, spec, model.predict_step(data))
        else:
            # A mixed-precision model returns logits in 16 bits.
            every[:] = [outputs.Output(PROBABILITY, tf.nn.softmax(tf.cast(model(data[0], training=False), tf.float32)), None)]
        return [_stored(one.tensor) for one in every]

    traced = call.get_concrete_function().structured_outputs
    leaves = tuple(Leaf(one.name, output.dtype.name, _shape(one.name, output)) for one, output in zip(every, traced, strict=True))
    return Predictor(model, call, leaves, tuple(one.goal for one in every))


def _shape(name: str, output: Any) -> tuple[int | None, ...]:
    if output.shape.rank is None or not output.shape.rank:
        raise ConfigError(f"the model's output {name} has the shape {output.shape}; its first dimension must be that of the examples")
    return tuple(output.shape[1:])


def _stored(output: Any) -> Any:
    """An output in a type that NumPy's format has."""
    import keras

    tensor = keras.ops.convert_to_tensor(output)
    return keras.ops.cast(tensor, "float32") if tensor.dtype.name in ("float16", "bfloat16") else tensor


def predict(folder: Path, metrics: Metrics) -> None:
    """Predict the examples of a folder (see `CONFIG`), and write `output_name` for each output."""
    job = read_json(folder / DATA / JOB)
    spec, rows = Spec.from_json(job["spec"]), int(job["rows"])
    examples = Columns(folder / DATA, spec.inputs, SPLIT, rows)
    examples.check()
    metrics.phase(Phase.BUILDING_MODEL)
    predictor = build(loading.build(loading.load(folder / CONFIG)), job["classes"], spec)
    starting_weights.load_snapshot(predictor.model, folder / MODEL)
    files = [
        np.lib.format.open_memmap(folder / output_name(number), "w+", leaf.stored_dtype, (rows, *(side or 0 for side in leaf.shape)))
        for number, leaf in enumerate(predictor.outputs)
    ]
    for number, start in enumerate(range(0, rows, BLOCK)):
        indices = np.arange(start, min(start + BLOCK, rows))
        for leaf, file, values in zip(predictor.outputs, files, predictor.call(examples.gather(indices)), strict=True):
            if tuple(values.shape) != (len(indices), *leaf.shape):
                raise LockstepError(f"{leaf.name}: {len(indices)} examples gave an output of shape {values.shape}")
            file[indices[0] : indices[-1] + 1] = values.numpy()
        if number % NOTED == 0:
            metrics.phase(Phase.PREDICTING, f"{indices[-1] + 1:,} of {rows:,} examples")
    for file in files:
        file.flush()
