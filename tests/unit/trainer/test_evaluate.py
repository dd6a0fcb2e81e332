"""Evaluations of a classifier: all examples count, also those of the last batch, which is shorter."""

from types import SimpleNamespace

import numpy as np
import pytest

from trainer import evaluate, step


def test_loss_and_accuracy_are_of_all_examples(monkeypatch):
    """One of four examples is taken for another class."""
    total, classes = evaluate.BATCH + 10, ["a", "b"]
    labels = np.arange(total, dtype=np.int32) % 2
    logits = np.eye(2, dtype=np.float32)[np.where(np.arange(total) % 4 == 1, 0, labels)]
    parts = [slice(start, start + evaluate.BATCH) for start in range(0, total, evaluate.BATCH)]

    def call(places, _):
        return [SimpleNamespace(numpy=lambda array=array: array[places]) for array in (logits, np.full(total, 0.5, np.float32))]

    monkeypatch.setattr(step, "make_classify_call", lambda model: call)
    actual = evaluate._classes(None, SimpleNamespace(classes=classes), total)((part, labels[part]) for part in parts)
    assert actual["metrics"] == {"loss": 0.5, "accuracy": pytest.approx(0.75)}
