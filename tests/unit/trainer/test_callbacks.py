"""What Keras callbacks remember goes into a state, and comes back to each of them on every worker."""

import keras
import numpy as np
import pytest

from trainer import callbacks
from trainer.callbacks import Callbacks


@pytest.fixture
def made(monkeypatch, tmp_path):
    """A worker's callbacks: one that writes files, which only the chief calls, before one that all call."""

    def make(is_chief):
        every = [
            keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="loss", mode="min", save_best_only=True),
            keras.callbacks.EarlyStopping(monitor="loss", patience=3),
        ]
        monkeypatch.setattr(callbacks, "load", lambda _: every)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
        created = Callbacks({"file": "mine.py"}, model, 9, 4, is_chief)
        created.begin([])
        return created, every

    return make


def test_each_callback_has_its_memory_on_every_worker(made):
    chief, before = made(True)
    for epoch, loss in enumerate((0.5, 0.7, 0.6), 1):
        chief.epoch_ends(epoch, {"loss": loss})
    state = chief.state()
    for is_chief in (True, False):
        worker, (writer, stopping) = made(is_chief)
        worker.begin(state)
        assert (stopping.wait, stopping.best) == (before[1].wait, before[1].best) == (2, 0.5)
        assert (writer.best == 0.5) == is_chief


def test_all_workers_know_that_there_are_callbacks(made, monkeypatch):
    assert all(made(is_chief)[0].anywhere for is_chief in (True, False))
    monkeypatch.setattr(callbacks, "load", lambda _: [])
    assert not Callbacks(None, keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), 9, 4, is_chief=True).anywhere


class AtMinimum(keras.callbacks.Callback):
    """Of Keras' guide: it keeps the best weights, and has no setting that says so."""

    def __init__(self):
        super().__init__()
        self.best_weights, self.best = None, float("inf")

    def on_epoch_end(self, epoch, logs=None):
        if logs["loss"] < self.best:
            self.best, self.best_weights = logs["loss"], self.model.get_weights()

    def on_train_end(self, logs=None):
        self.model.set_weights(self.best_weights)


class Named(keras.callbacks.Callback):
    """Its best weights are a file's name."""

    best_weights = ""


def test_callback_of_users_own_has_best_weights_again(monkeypatch):
    def start(before, variables):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
        monkeypatch.setattr(callbacks, "load", lambda _: [AtMinimum(), Named()])
        created = Callbacks({"file": "mine.py"}, model, 9, 4, is_chief=True)
        for variable, value in zip(created.variables, variables, strict=False):
            variable.assign(value)
        created.begin(before)
        return model, created

    model, first = start([], [])
    best = [weight + 1 for weight in model.get_weights()]
    model.set_weights(best)
    first.epoch_ends(1, {"loss": 0.5})
    model.set_weights([weight + 1 for weight in best])
    first.epoch_ends(2, {"loss": 0.7})
    first._every[1].best_weights = "best.h5"
    state = first.state()
    model, second = start(state, [variable.numpy() for variable in first.variables])
    assert second._every[1].best_weights == "best.h5"
    second.epoch_ends(3, {"loss": 0.6})
    second.end()
    for mine, theirs in zip(model.get_weights(), best, strict=True):
        np.testing.assert_array_equal(mine, theirs)


class Noting(keras.callbacks.Callback):
    """The training's size, and its calls in order."""

    def on_train_begin(self, logs=None):
        self.calls = [(self.params["epochs"], self.params["steps"])]

    def on_train_batch_begin(self, batch, logs=None):
        self.calls.append(("begin", batch))

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(("end", batch))


def test_callbacks_know_how_many_steps_an_epoch_has(monkeypatch):
    model, noting = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), Noting()
    monkeypatch.setattr(callbacks, "load", lambda _: [noting])
    created = Callbacks({"file": "mine.py"}, model, 9, 4, is_chief=True)
    created.begin([])
    created.call_begins(2)
    created.call_ends(4, {})
    assert noting.calls == [(9, 4), ("begin", 2), ("end", 3)]


def test_a_callback_that_restores_weights_is_left_out():
    """It would start the chief from its own backup, and the others from the run's state."""
    source = "import keras\ndef make():\n    return [keras.callbacks.BackupAndRestore('backup'), keras.callbacks.TerminateOnNaN()]\n"
    kept, warnings = callbacks.sorted_out({"file": "mine.py", "function": "make", "source": source})
    assert [type(one).__name__ for one in kept] == ["TerminateOnNaN"]
    assert warnings == [
        "callbacks=mine.py:make: BackupAndRestore is left out: Lockstep saves states itself, and continues from the exact step"
    ]
