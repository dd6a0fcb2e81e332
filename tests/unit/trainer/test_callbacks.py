"""What Keras callbacks remember goes into a state, and comes back to each of them on every worker."""

import keras
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
        created = Callbacks({"file": "mine.py"}, model, 9, is_chief)
        created.begin([])
        return created, every

    return make


def test_each_callback_has_its_own_memory_again_on_every_worker(made):
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
    assert not Callbacks(None, keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), 9, is_chief=True).anywhere
