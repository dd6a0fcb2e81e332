"""Evaluate snapshots on the test examples, which training never sees."""

import datetime
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainer import config as configs
from trainer import judging, outputs
from trainer.data.examples import open_examples
from trainer.data.manifest import Manifest, Published
from trainer.data.pipeline import Examples
from trainer.errors import LockstepError
from trainer.files import write_json
from trainer.metrics import Metrics
from trainer.rundir import snapshot_path

BATCH = 250


def evaluate(run: Path, epochs: list[int], published: Published, caches: Path, out: Path, metrics: Metrics) -> None:
    """Evaluate snapshots and write `out/epoch-<n>.json` for each: the model's metrics, and what its outputs get wrong."""
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
        results = _measured(model, manifest, examples, batches()) if compiled else _classified(model, manifest, batches(), len(examples))
        record = {"epoch": epoch, "split": "test", **results, "images": len(examples), "seconds": round(time.monotonic() - begun, 3)}
        at = datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds")
        write_json(out / f"epoch-{epoch:04d}.json", {**record, "evaluated_at": at})


def _measured(model: Any, manifest: Manifest, examples: Examples, batches: Iterator[Any]) -> dict[str, Any]:
    """The metrics of a compiled model, as Keras' `evaluate` gives them, and for each output what it gets wrong, or why that is unknown."""
    import tensorflow as tf

    from trainer import keras_metrics, step

    if not keras_metrics.validates(model):
        raise LockstepError("the model has neither a loss nor a test_step of its own, so there is nothing to evaluate")
    every: list[outputs.Output] = []

    @tf.function(input_signature=[step.rows(examples.spec)], autograph=False)
    def test(data: Any) -> Any:
        with step.predictions(model) as predicted:
            sums = step.test_sums(model, True, data)
        hidden = outputs.Output("", None, None, why="the model has a test_step of its own")
        every[:] = outputs.of(model, examples.spec, predicted[0]) if predicted else [hidden]
        return [sums, *(tf.cast(one.tensor, tf.float32) for one in every if one.goal)]

    test.get_concrete_function()
    targets = [one.target for one in every if one.goal]
    judges = judging.judges([one.goal for one in every if one.goal], len(examples), manifest.classes)
    sums = np.zeros(keras_metrics.size(model))
    for data in batches:
        moved, *predicted = test(data)
        sums += moved.numpy().astype(np.float64)
        values = examples.spec.unpack(data)
        for judge, target, tensor in zip(judges, targets, predicted, strict=True):
            judge.see(values[target], tensor.numpy())
    metrics = {name: round(value, 6) for name, value in keras_metrics.Results(model)(sums).items()}
    results = iter(judges)
    wrong = [{"name": one.name if len(every) > 1 else "", **(next(results).result() if one.goal else {"why": one.why})} for one in every]
    return {"metrics": metrics, "outputs": wrong}


def _classified(model: Any, manifest: Manifest, batches: Iterator[Any], total: int) -> dict[str, Any]:
    """Loss, accuracy and confusion matrix of a classifier of images."""
    from trainer.step import make_classify_call

    call, classes = make_classify_call(model), len(manifest.classes)
    judge, loss = judging.Confusion(judging.Classes(classes), manifest.classes), 0.0
    for images, labels in batches:
        logits, losses = (value.numpy() for value in call(images, labels))
        judge.see(labels, logits)
        loss += float(losses.sum(dtype=np.float64))
    metrics = {"loss": round(loss / total, 6), "accuracy": round(float(np.trace(judge.matrix)) / total, 6)}
    return {"metrics": metrics, "outputs": [{"name": "", **judge.result()}]}
