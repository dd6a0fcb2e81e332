"""Evaluate snapshots on the images of `test/`, which training never sees, and predict single images."""

import datetime
import time
from pathlib import Path
from typing import Any

import numpy as np

from trainer import config as configs
from trainer.data.cache import open_images
from trainer.data.images import decode, fit
from trainer.data.manifest import Manifest, Published, load
from trainer.errors import LockstepError
from trainer.files import write_json
from trainer.models import own
from trainer.rundir import snapshot_path
from trainer.telemetry import Metrics

BATCH = 250


def evaluate(run: Path, epochs: list[int], published: Published, caches: Path, out: Path, metrics: Metrics) -> None:
    """Evaluate snapshots and write `out/epoch-<n>.json` for each: loss, accuracy, confusion matrix."""
    config = configs.build(configs.load(run / "config.yml"))
    limit = config.data.cache_limit_mb
    metrics.phase("caching")
    manifest, images = open_images(published, caches, config.data.image_size, limit, metrics.caching, config.data.loaders)
    import keras

    own.prepare(config.model)
    for number, epoch in enumerate(epochs):
        metrics.phase("evaluating", f"epoch {epoch}: {number} of {len(epochs)} done")
        model = keras.models.load_model(snapshot_path(run, epoch), compile=False)
        write_json(out / f"epoch-{epoch:04d}.json", {"epoch": epoch, **_test(model, images["test"], manifest, metrics, epoch)})


def _test(model: Any, images: Any, manifest: Manifest, metrics: Metrics, epoch: int) -> dict[str, Any]:
    from trainer.step import make_classify_call

    begun, total = time.monotonic(), len(images.labels)
    call, classes = make_classify_call(model), len(manifest.classes)
    confusion, loss = np.zeros((classes, classes), np.int64), 0.0
    for start in range(0, total, BATCH):
        chosen = np.arange(start, min(start + BATCH, total))
        labels = images.labels[chosen].astype(np.int32)
        logits, losses = (value.numpy() for value in call(images.gather(chosen), labels))
        np.add.at(confusion, (labels, logits.argmax(axis=1)), 1)
        loss += float(losses.sum(dtype=np.float64))
        if start // BATCH % 20 == 19:
            metrics.phase("evaluating", f"epoch {epoch}: {start}/{total} images")
    return {
        "split": "test",
        "loss": round(loss / total, 6),
        "accuracy": round(float(np.trace(confusion)) / total, 6),
        "images": total,
        "seconds": round(time.monotonic() - begun, 3),
        "evaluated_at": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        "classes": manifest.classes,
        "confusion": confusion.tolist(),
    }


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
