"""How many images per second this host predicts on 1 to N of its devices, by batch size.

The model is replicated: every device has the whole model and predicts its part of each batch. Devices are GPUs if there
are any; otherwise the CPU is split into logical devices, which share its cores.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.node.passes import Progress, Spent, in_turn
from trainer import models
from trainer.common.errors import LockstepError
from trainer.common.files import write_json
from trainer.config import loading
from trainer.models import user_model
from trainer.network.cluster import take_gpus
from trainer.rundir.metrics_log import Metrics
from trainer.rundir.phases import Phase
from trainer.user_code import user_function

PASS_S = 1.0
"""A pass has as many calls as the fewest devices make in about this time."""
WARM_UP_CALLS = 2
CLASSES = 10
"""Number of classes of a newly initialised model."""


@dataclass(frozen=True)
class Wanted:
    """Measurements to make."""

    devices: tuple[int, ...]
    batches: tuple[int, ...]
    passes: int


def run(config: Path, snapshot: Path | None, wanted: Wanted, threads: int, out: Path) -> None:
    """Measure a snapshot, or a new model of the configuration, and write `out/results.json`; `out/metrics.jsonl` shows progress."""
    metrics = Metrics(out / "metrics.jsonl")
    metrics.phase(Phase.TIMING, "starting TensorFlow")
    names = open_devices(max(wanted.devices), threads)
    parsed = loading.build(loading.load(config))

    def make() -> keras.Model:
        if snapshot is not None:
            if parsed.model["name"] == user_model.NAME:
                # A snapshot may name classes of the user's file.
                user_function.load("model", user_function.Function.of(parsed.model))
            return keras.models.load_model(snapshot, compile=False)
        return models.build(parsed.model, parsed.data.image_size, CLASSES)

    results = measure(make, wanted, names, lambda note: metrics.phase(Phase.TIMING, note))
    write_json(out / "results.json", {**results, "threads": threads})


def measure(make: Callable[[], keras.Model], wanted: Wanted, names: list[str], progress: Progress) -> dict[str, Any]:
    """Time the prediction of random images.

    Besides the requested batches, a batch of one image per device is timed: the extra time it takes on all devices
    compared with one is the cost of splitting a batch.

    Args:
        make: makes the model, the same at every call.
        wanted: numbers of devices, batch sizes (images), passes of each.
        names: of the devices, as from `open_devices`; at least as many as wanted.
        progress: called with a progress line.

    Returns:
        `model` (its name), `parameters`, `kind` (`CPU` or `GPU`), `smallest` (the batch of one image per device), `rows`:
        `devices`, `batch`, `number` (of the pass), `calls`, and the values of `Spent`.
    """
    replicas = Replicas(make, names[: max(wanted.devices)])
    predictors = {count: replicas.predictor(count) for count in wanted.devices}
    smallest = max(wanted.devices)
    batches = sorted({smallest, *wanted.batches})
    images = {batch: _random_images(batch, replicas.input_shape) for batch in batches}
    counts = {batch: _warm_up(predictors, images[batch], progress) for batch in batches}
    rows = []
    for number in range(1, wanted.passes + 1):
        for batch in batches:
            progress(f"round {number} of {wanted.passes}, batch {batch}")
            for devices in in_turn(wanted.devices, number):
                row = _one_pass(predictors[devices], images[batch], counts[batch])
                rows.append({"devices": devices, "batch": batch, "number": number, "calls": counts[batch], **row})
    kind = "GPU" if "GPU" in names[0] else "CPU"
    return {"model": replicas.name, "parameters": replicas.parameters, "kind": kind, "smallest": smallest, "rows": rows}


def open_devices(most: int, threads: int) -> list[str]:
    """Names of `most` local devices; call before TensorFlow's first operation.

    Args:
        most: how many.
        threads: size of the pool that all logical CPU devices share.

    Raises:
        LockstepError: there are GPUs, but fewer than that.
    """
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    # A separate thread starts each device's operations.
    tf.config.threading.set_inter_op_parallelism_threads(max(2, threads, most))
    gpus = take_gpus()
    if gpus >= most:
        return [device.name for device in tf.config.list_logical_devices("GPU")][:most]
    if gpus:
        raise LockstepError(f"devices={most}: this host has {gpus} GPU{'s' if gpus > 1 else ''}; ask for at most as many")
    processor = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * most)
    return [device.name for device in tf.config.list_logical_devices("CPU")]


class Replicas:
    """A copy of one model on each device.

    Placed by `tf.device` and traced as one function: a call costs less than `MirroredStrategy.run`, whose bookkeeping
    prediction does not need.
    """

    def __init__(self, make: Callable[[], keras.Model], names: list[str]):
        """Make the copies; all get the first one's weights."""
        self._placed: list[tuple[str, keras.Model]] = []
        for name in names:
            with tf.device(name):
                model = make()
                if self._placed:
                    model.set_weights(self._placed[0][1].get_weights())
            self._placed.append((name, model))
        first = self._placed[0][1]
        self.name, self.parameters, self.input_shape = str(first.name), int(first.count_params()), tuple(first.input_shape[1:])

    def predictor(self, count: int) -> Callable[[np.ndarray], np.ndarray]:
        """A function of images `[batch, height, width, channels]` uint8 that returns logits `[batch, classes]` float32.

        Each of the first `count` devices predicts an equal part, to within one image.
        """
        placed = self._placed[:count]
        specs = [tf.TensorSpec([None, *self.input_shape], tf.uint8) for _ in placed]

        @tf.function(input_signature=[specs], autograph=False)
        def call(parts: list[tf.Tensor]) -> list[tf.Tensor]:
            logits = []
            for (name, model), part in zip(placed, parts, strict=True):
                with tf.device(name):
                    logits.append(tf.cast(model(part, training=False), tf.float32))
            return logits

        def predict(images: np.ndarray) -> np.ndarray:
            return np.concatenate([one.numpy() for one in call(np.array_split(images, count))])

        return predict


def _one_pass(predict: Callable[[np.ndarray], np.ndarray], images: np.ndarray, calls: int) -> dict[str, float]:
    """Cost of `calls` calls, as the values of `Spent`."""
    spent = Spent()
    for _ in range(calls):
        predict(images)
    return spent.so_far()


def _random_images(count: int, shape: tuple[int, ...]) -> np.ndarray:
    """Noise `[count, *shape]` uint8, the same every time."""
    return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)


def _warm_up(predictors: dict[int, Callable[[np.ndarray], np.ndarray]], images: np.ndarray, progress: Progress) -> int:
    """Run every predictor on its batch; return the number of calls per pass, the same for all."""
    seconds = []
    for devices, predict in predictors.items():
        progress(f"warm-up: batch {len(images)}, devices: {devices}")
        for _ in range(WARM_UP_CALLS):
            predict(images)
        seconds.append(min(_one_pass(predict, images, 1)["seconds"] for _ in range(WARM_UP_CALLS)))
    return max(1, math.ceil(PASS_S / seconds[0]))
