"""Evaluations of a classifier: all examples count, also those of the last batch, which is shorter."""

from types import SimpleNamespace

import numpy as np
import pytest

from trainer.evaluation import evaluate, measures
from trainer.step import testing


@pytest.mark.parametrize(
    ("most", "wrong"),
    [
        (2, {"name": "", "classes": ["a", "b"], "confusion": [[130, 0], [65, 65]]}),
        (1, {"name": "", "why": "it has more than 1 classes"}),
    ],
)
def test_loss_and_accuracy_are_of_all_examples(most, wrong, monkeypatch):
    """One of four examples is taken for another class; a matrix of very many classes would fill the memory."""
    monkeypatch.setattr(measures, "MOST_CLASSES", most)
    total, classes = evaluate.BATCH + 10, ["a", "b"]
    labels = np.arange(total, dtype=np.int32) % 2
    logits = np.eye(2, dtype=np.float32)[np.where(np.arange(total) % 4 == 1, 0, labels)]
    images = np.arange(total).reshape(total, 1, 1, 1)
    parts = [slice(start, start + evaluate.BATCH) for start in range(0, total, evaluate.BATCH)]

    def call(images, _):
        places = images.ravel()
        return [SimpleNamespace(numpy=lambda array=array: array[places]) for array in (logits, np.full(total, 0.5, np.float32))]

    monkeypatch.setattr(testing, "make_classify_call", lambda model: call)
    actual = evaluate._classes(None, SimpleNamespace(classes=classes), total)((images[part], labels[part]) for part in parts)
    actual["outputs"][0].pop("mistakes", None)
    assert actual == {"metrics": {"loss": 0.5, "accuracy": pytest.approx(0.75)}, "outputs": [wrong]}
