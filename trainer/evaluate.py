"""Evaluate snapshots on the test examples, which training never sees, and predict single images."""

import datetime
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainer import config as configs
from trainer.data.examples import open_examples
from trainer.data.images import decode, fit
from trainer.data.manifest import Manifest, Published, load
from trainer.data.spec import Spec
from trainer.errors import LockstepError
from trainer.files import write_json
from trainer.models import own
from trainer.rundir import snapshot_path
from trainer.telemetry import Metrics

BATCH = 250


def evaluate(run: Path, epochs: list[int], published: Published, caches: Path, out: Path, metrics: Metrics) -> None:
    """Evaluate snapshots and write `out/epoch-<n>.json` for each: the model's metrics; of a classifier of images, a confusion matrix."""
    config = configs.build(configs.load(run / "config.yml"))
    metrics.phase("caching")
    manifest, splits = open_examples(published, caches, config.data, metrics.caching)
    examples = splits["test"]
    from trainer import assembly

    model, compiled = assembly.build_model(config, len(manifest.classes), examples.spec)
    for number, epoch in enumerate(epochs):
        metrics.phase("evaluating", f"epoch {epoch}: {number} of {len(epochs)} done")
        model.load_weights(snapshot_path(run, epoch))

        def batches(epoch: int = epoch) -> Iterator[Any]:
            for start in range(0, len(examples), BATCH):
                yield examples.gather(np.arange(start, min(start + BATCH, len(examples))))
                if start // BATCH % 20 == 19:
                    metrics.phase("evaluating", f"epoch {epoch}: {start}/{len(examples)} examples")

        begun = time.monotonic()
        results = _measured(model, examples.spec, batches()) if compiled else _classified(model, manifest, batches(), len(examples))
        record = {"epoch": epoch, "split": "test", **results, "images": len(examples), "seconds": round(time.monotonic() - begun, 3)}
        at = datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds")
        write_json(out / f"epoch-{epoch:04d}.json", {**record, "evaluated_at": at})


def _measured(model: Any, spec: Spec, batches: Iterator[Any]) -> dict[str, Any]:
    """The metrics of a compiled model, as Keras' `evaluate` gives them."""
    import tensorflow as tf

    from trainer import keras_metrics, step

    if not keras_metrics.validates(model):
        raise LockstepError("the model has neither a loss nor a test_step of its own, so there is nothing to evaluate")

    @tf.function(input_signature=[step.rows(spec)], autograph=False)
    def test(data: Any) -> Any:
        return step.test_sums(model, True, data)

    sums = sum((test(data).numpy().astype(np.float64) for data in batches), np.zeros(keras_metrics.size(model)))
    return {"metrics": {name: round(value, 6) for name, value in keras_metrics.Results(model)(sums).items()}}


def _classified(model: Any, manifest: Manifest, batches: Iterator[Any], total: int) -> dict[str, Any]:
    """Loss, accuracy and confusion matrix of a classifier of images."""
    from trainer.step import make_classify_call

    call, classes = make_classify_call(model), len(manifest.classes)
    confusion, loss = np.zeros((classes, classes), np.int64), 0.0
    for images, labels in batches:
        logits, losses = (value.numpy() for value in call(images, labels))
        np.add.at(confusion, (labels, logits.argmax(axis=1)), 1)
        loss += float(losses.sum(dtype=np.float64))
    metrics = {"loss": round(loss / total, 6), "accuracy": round(float(np.trace(confusion)) / total, 6)}
    return {"metrics": metrics, "classes": manifest.classes, "confusion": confusion.tolist()}


def predict(run: Path, epoch: int, published: Published, image: Path) -> list[dict[str, Any]]:
    """The three most probable classes of one image file, most probable first; LockstepError if it is not a readable image."""
    config = configs.build(configs.load(run / "config.yml"))
    try:
        pixels = fit(decode(image.read_bytes()), config.data.image_size)
    except (OSError, ValueError) as error:
        raise LockstepError(f"image={image.name}: can't be read: {error}") from None
    import keras

    own.prepare(config.model)
    model = keras.models.load_model(snapshot_path(run, epoch), compile=False)
    logits = np.asarray(model(pixels[None].astype(np.float32), training=False))[0]
    chances = np.asarray(keras.ops.softmax(logits.astype(np.float32)))  # a mixed-precision model returns logits in 16 bits
    classes = load(published).classes
    return [{"class": classes[index], "probability": round(float(chances[index]), 6)} for index in np.argsort(-chances)[:3]]
