"""Evaluate snapshots on the test examples, which training never sees."""

import datetime
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.checkpoint import starting_weights
from trainer.common.errors import LockstepError
from trainer.common.files import write_json
from trainer.config import loading
from trainer.config.schema import Config
from trainer.data.batch import Examples
from trainer.data.manifest import Manifest, Published
from trainer.data.open_examples import open_examples
from trainer.evaluation import measures, outputs
from trainer.rundir.layout import record_path, snapshot_path
from trainer.rundir.metrics_log import Metrics
from trainer.rundir.phases import Phase
from trainer.rundir.schemas import numbers, rounded

if TYPE_CHECKING:
    from trainer.keras_step.keras_metrics import Results

BATCH = 250
TELL_EVERY = 20
"""Batches between two reports of how far an evaluation is."""


def evaluate(run: Path, epochs: list[int], published: Published, caches: Path, out: Path, metrics: Metrics) -> None:
    """Evaluate snapshots and write `out/epoch-<n>.json` for each: the model's metrics, and what its outputs get wrong."""
    test = Test.of_run(run, published, caches, metrics)
    for number, epoch in enumerate(epochs):
        metrics.phase(Phase.EVALUATING, f"epoch {epoch}: {number} of {len(epochs)} done")

        def tell(done: int, of: int, epoch: int = epoch) -> None:
            metrics.phase(Phase.EVALUATING, f"epoch {epoch}: {done}/{of} examples")

        write_json(record_path(out, epoch), test.record(epoch, snapshot_path(run, epoch), tell))


class Test:
    """The test examples of a run and its model, for one snapshot after the other."""

    def __init__(self, config: Config, manifest: Manifest, examples: Examples):
        """Build the model.

        Raises:
            LockstepError: it has no loss, so there is nothing to evaluate.
        """
        from trainer.step import build_step

        self._examples = examples
        self.model, compiled = build_step.build_model(config, len(manifest.classes), examples.spec)
        self._measure = _metrics(self.model, manifest, examples) if compiled else _classes(self.model, manifest, len(examples))

    @classmethod
    def of_run(cls, run: Path, published: Published, caches: Path, metrics: Metrics) -> "Test":
        """That of a run directory on this host."""
        config = loading.build(loading.load(run / "config.yml"))
        metrics.phase(Phase.CACHING)
        manifest, splits = open_examples(published, caches, config.data, metrics.caching)
        return cls(config, manifest, splits["test"])

    def record(self, epoch: int, snapshot: Path, tell: Callable[[int, int], None] = lambda *_: None) -> dict[str, Any]:
        """The evaluation of an epoch's snapshot; `tell` is called with how many examples of how many are done."""
        starting_weights.load_snapshot(self.model, snapshot)
        begun = time.monotonic()
        results = self._measure(self._batches(tell))
        record = {"epoch": epoch, "split": "test", **results, "images": len(self._examples), "seconds": round(time.monotonic() - begun, 3)}
        return {**record, "evaluated_at": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds")}

    def _batches(self, tell: Callable[[int, int], None]) -> Iterator[Any]:
        total = len(self._examples)
        for number, start in enumerate(range(0, total, BATCH), 1):
            yield self._examples.gather(np.arange(start, min(start + BATCH, total)))
            if number % TELL_EVERY == 0:
                tell(start, total)


Measure = Callable[[Iterator[Any]], dict[str, Any]]
"""From batches of examples to the entries of an evaluation."""


def _metrics(model: Any, manifest: Manifest, examples: Examples) -> Measure:
    """The metrics of a compiled model, as Keras' `evaluate` gives them, and for each output what it gets wrong, or why that is unknown."""
    import tensorflow as tf

    from trainer.keras_step import keras_metrics
    from trainer.models.compiled_model import CompiledModel
    from trainer.step import batch_arrays, testing

    if not CompiledModel(model).validates(batch_arrays.data_signature(examples.spec)):
        raise LockstepError("the model has no loss, nor a test_step of its own, so there is nothing to evaluate")
    every: list[outputs.Output] = []
    logs = keras_metrics.StepLogs()

    @tf.function(input_signature=[batch_arrays.data_signature(examples.spec)], autograph=False)
    def test(data: Any) -> Any:
        with testing.predictions(model) as predicted:
            sums = testing.test_sums(model, True, data, draws=True, logs=logs)
        hidden = outputs.Output("", None, None, why="the model has a test_step of its own")
        every[:] = outputs.of(model, examples.spec, predicted[0]) if predicted else [hidden]
        return [sums, *(tf.cast(one.tensor, tf.float32) for one in every if one.goal)]

    test.get_concrete_function()
    results = keras_metrics.Results(model, logs)
    return lambda batches: _measured(results, test, every, manifest.classes, examples, batches)


def _measured(
    results: "Results", test: Any, every: Sequence[outputs.Output], classes: Sequence[str], examples: Examples, batches: Iterator[Any]
) -> dict[str, Any]:
    targets = [one.target for one in every if one.goal]
    judges = measures.judges([one.goal for one in every if one.goal], len(examples), classes)
    sums: Sequence[float] | np.ndarray = ()
    picture = outputs.picture(examples.spec)
    for data in batches:
        moved, *predicted = test(data)
        sums = results.summed(sums, moved.numpy()[np.newaxis])
        values = examples.spec.unpack(data)
        for judge, target, tensor in zip(judges, targets, predicted, strict=True):
            judge.see(values[target], tensor.numpy(), None if picture is None else np.asarray(values[picture]))
    metrics = rounded(numbers(results(sums)))
    judged = iter(judges)
    wrong = [{"name": one.name if len(every) > 1 else "", **(next(judged).result() if one.goal else {"why": one.why})} for one in every]
    return {"metrics": metrics, "outputs": wrong}


def _classes(model: Any, manifest: Manifest, total: int) -> Measure:
    """Loss, accuracy and confusion matrix of a classifier of images."""
    from trainer.step.testing import make_classify_call

    call, classes = make_classify_call(model), len(manifest.classes)

    def measure(batches: Iterator[Any]) -> dict[str, Any]:
        # The matrix has the square of the classes.
        judge = measures.Confusion(measures.Classes(classes), manifest.classes) if classes <= measures.MOST_CLASSES else None
        loss, right = 0.0, 0
        for images, labels in batches:
            logits, losses = (value.numpy() for value in call(images, labels))
            right += int((logits.argmax(axis=-1) == labels).sum())
            loss += float(losses.sum(dtype=np.float64))
            if judge is not None:
                judge.see(labels, logits, images)
        metrics = {"loss": round(loss / total, 6), "accuracy": round(right / total, 6)}
        wrong = {"why": f"it has more than {measures.MOST_CLASSES:,} classes"} if judge is None else judge.result()
        return {"metrics": metrics, "outputs": [{"name": "", **wrong}]}

    return measure
