"""Keras' own `fit` of an example on one host, in seconds and metrics: name, seed, and its trainings in JSON. Sent beside the example."""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def dense(value: np.ndarray) -> Any:
    """Sequences of different lengths padded with 0, strings as a tensor, doubles as floats: what `fit` takes."""
    if value.dtype == object:
        longest = max(map(len, value))
        return np.array([np.pad(row, (0, longest - len(row))) for row in value])
    return tf.constant(value) if value.dtype.kind == "U" else value.astype(np.float32) if value.dtype == np.float64 else value


def numbered(data: Sequence[Any], names: Any) -> Any:
    """Classes as numbers where `y` has names."""
    x, *rest = data
    if rest and isinstance(rest[0], np.ndarray) and rest[0].dtype.kind == "U":
        rest[0] = np.searchsorted(names, rest[0]).astype(np.int32)
    return tf.nest.map_structure(dense, (x, *rest))


def main() -> None:
    """Train, evaluate, write `result.json`."""
    name, seed, stages = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    tf.config.threading.set_intra_op_parallelism_threads(1)
    example = importlib.import_module(name)
    keras.utils.set_random_seed(seed)
    model = None
    for stage in stages:
        before, model = model, example.build(**stage["options"])
        if before is not None:
            before.save_weights("before.weights.h5")
            model.load_weights("before.weights.h5", skip_mismatch=stage["skip_mismatch"])
        result = fit(model, getattr(example, stage["data"]), stage["epochs"], stage["batch"], seed)
    Path(os.environ["LOCKSTEP_OUTPUT"], "result.json").write_text(json.dumps(result))


def fit(model: Any, of_split: Callable[[str], Any], epochs: int, batch: int, seed: int) -> dict[str, Any]:
    """Train and evaluate: metrics, and examples/s from the second epoch on."""
    data = of_split("train")
    names = np.unique(data[1]) if len(data) > 1 and isinstance(data[1], np.ndarray) else None
    rows = len(tf.nest.flatten(data)[0])
    # As many rows as Lockstep trains on when data("validation") has none.
    chosen = np.random.default_rng(seed).permutation(rows)[rows // 5 :] if of_split("validation") is None else np.arange(rows)
    picked = numbered(tf.nest.map_structure(lambda array: np.asarray(array)[chosen], data), names)
    begun: list[float] = []
    ended: list[float] = []
    clock = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda *_: begun.append(time.monotonic()), on_epoch_end=lambda *_: ended.append(time.monotonic())
    )
    history = model.fit(
        tf.data.Dataset.from_tensor_slices(picked).cache().shuffle(len(chosen), seed=seed).batch(batch, drop_remainder=True),
        epochs=epochs,
        verbose=0,
        callbacks=[clock],
    ).history
    metrics = {key: values[-1] for key, values in history.items()}
    if model.loss is not None or type(model).compute_loss is not keras.Model.compute_loss:
        test = numbered(of_split("test"), names)
        metrics = model.evaluate(tf.data.Dataset.from_tensor_slices(test).batch(batch), verbose=0, return_dict=True)
    # The first epoch traces.
    seconds = np.subtract(ended, begun)[1:]
    return {"metrics": metrics, "examples_per_s": len(chosen) // batch * batch * len(seconds) / seconds.sum()}


if __name__ == "__main__":
    main()
