"""What Keras callbacks remember goes into a state, and comes back to each of them on every worker."""

import inspect
import json
import sys
from unittest import mock

import keras
import numpy as np
import pytest

from trainer.user_code import callbacks
from trainer.user_code.callbacks import Callbacks, Restored


def begin(created, before=(), done=0):
    created.attach(mock.Mock(), before, done)
    created.on_train_begin()


def small(**options):
    """A small compiled model."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(loss="mse", **options)
    return model


@pytest.fixture
def worker(monkeypatch):
    """A worker whose callbacks are `every`."""

    def make(*every, model=None, is_chief=True):
        monkeypatch.setattr(callbacks, "_load", lambda _: list(every))
        return Callbacks({"file": "mine.py"} if every else None, model or small(), 9, 4, is_chief)

    return make


@pytest.fixture
def made(worker, tmp_path):
    """A worker's callbacks: one that writes files, which only the chief calls, before one that all call."""

    def make(is_chief):
        best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="loss", mode="min", save_best_only=True)
        every = [best, keras.callbacks.EarlyStopping(monitor="loss", patience=3)]
        return worker(*every, is_chief=is_chief), every

    return make


def test_each_callback_has_its_memory_on_every_worker(made):
    chief, before = made(True)
    begin(chief)
    for epoch, loss in enumerate((0.5, 0.7, 0.6)):
        chief.on_epoch_end(epoch, {"loss": loss})
    state = chief.state()
    for is_chief in (True, False):
        worker, (writer, stopping) = made(is_chief)
        begin(worker, state)
        assert worker.model.history.history == {"loss": [0.5, 0.7, 0.6]}
        assert (stopping.wait, stopping.best) == (before[1].wait, before[1].best) == (2, 0.5)
        assert (writer.best == 0.5) == is_chief


def test_all_workers_know_that_there_are_callbacks(made, worker):
    assert all(made(is_chief)[0].anywhere for is_chief in (True, False))
    assert not worker().anywhere


def test_history_of_vector_metrics_goes_on(made):
    chief, _ = made(True)
    begin(chief)
    chief.on_epoch_end(0, {"loss": 0.5, "f1": np.array([0.25, 0.75])})
    worker, _ = made(False)
    begin(worker, chief.state())
    worker.on_epoch_end(1, {"loss": 0.4, "f1": np.array([0.5, 1.0])})
    assert worker.model.history.epoch == [0, 1]
    np.testing.assert_array_equal(worker.model.history.history["f1"], [[0.25, 0.75], [0.5, 1.0]])


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


def test_callback_of_users_own_has_best_weights_again(worker):
    def start(before, variables):
        created = worker(AtMinimum(), Named(), model=(model := small()))
        for variable, value in zip(created.variables, variables, strict=False):
            variable.assign(value)
        begin(created, before)
        return model, created

    model, first = start([], [])
    best = [weight + 1 for weight in model.get_weights()]
    model.set_weights(best)
    first.on_epoch_end(0, {"loss": 0.5})
    model.set_weights([weight + 1 for weight in best])
    first.on_epoch_end(1, {"loss": 0.7})
    first._every[1].best_weights = "best.h5"
    state = first.state()
    model, second = start(state, [variable.numpy() for variable in first.variables])
    assert second._every[1].best_weights == "best.h5"
    second.on_epoch_end(2, {"loss": 0.6})
    second.on_train_end()
    second._loop.train_ends.assert_called_once_with(Restored("AtMinimum", 0))
    for mine, theirs in zip(model.get_weights(), best, strict=True):
        np.testing.assert_array_equal(mine, theirs)


class Averaging(keras.callbacks.Callback):
    """Averages the weights of its epochs; it was given data and a stream."""

    def __init__(self, rows, stream):
        super().__init__()
        self.rows, self.stream, self.mean, self.count = rows, stream, None, 0

    def on_epoch_end(self, epoch, logs=None):
        self.count, weights = self.count + 1, self.model.get_weights()
        pairs = zip(self.mean or weights, weights, strict=True)
        self.mean = [mean + (one - mean) / self.count for mean, one in pairs]


@pytest.fixture
def averaging(worker):
    """Trains through epochs that end with these weights."""

    def train(before, *weights):
        created = worker(Averaging(np.zeros(callbacks.LARGE), sys.stdout), model=(model := small()))
        begin(created, before)
        for epoch, weight in enumerate(weights):
            model.set_weights([np.full((2, 1), weight), np.zeros(1)])
            created.on_epoch_end(epoch, {"loss": 0.5})
        return created

    return train


def test_arrays_that_a_callback_keeps_go_on(averaging):
    state = json.loads(json.dumps(averaging([], 1.0, 3.0).state()))
    (callback,) = averaging(state, 5.0)._every
    assert callback.mean[0].tolist() == [[3.0], [3.0]]


def test_what_a_callback_was_given_is_no_state(averaging):
    """Unchanged data is left out; a stream cannot be saved, and is named."""
    created = averaging([], 1.0)
    assert "rows" not in created.state()[0]
    assert list(created.forgotten) == ["Averaging.stream"]
    created._every[0].rows[0] = 1.0
    assert "rows" in created.state()[0]


def test_what_history_can_not_hold_is_left_out(made):
    """As a time that a callback adds to the logs."""
    chief, _ = made(True)
    begin(chief)
    chief.on_epoch_end(0, {"loss": 0.5, "when": object()})
    assert chief.state()[-1]["history"] == {"loss": [0.5]}


class Telling(keras.callbacks.TensorBoard):
    """Counts its epochs."""

    count = 0

    def on_epoch_end(self, epoch, logs=None):
        self.count += 1


def test_other_workers_write_nowhere_after_a_restart(worker, tmp_path):
    def start(is_chief, before):
        created = worker(Telling(tmp_path / "logs", write_graph=False), is_chief=is_chief)
        begin(created, before)
        return created

    chief = start(True, [])
    chief.on_epoch_end(0, {"loss": 0.5})
    (other,) = start(False, chief.state())._every
    assert other.count == 1
    assert not {other.log_dir, other._log_write_dir, other._train_dir} & {chief._every[0].log_dir, chief._every[0]._train_dir}


class Noting(keras.callbacks.Callback):
    """Its calls in order, which are part of a state."""

    def on_train_begin(self, logs=None):
        self.calls = [[self.params["epochs"], self.params["steps"]]]

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append(["epoch", epoch])

    def on_train_batch_begin(self, batch, logs=None):
        self.calls.append(["begin", batch])

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(["end", batch])


def test_hooks_called_before_are_left_out(worker):
    """A state was saved after three of four steps; two are one execution, so that the second had begun."""

    def called(before, done):
        created = worker(Noting(), model=small(steps_per_execution=2))
        begin(created, before, done)
        created.on_epoch_begin(5)
        for batch in (0, 2):
            created.on_train_batch_begin(batch)
            created.on_train_batch_end(batch + 1)
        return created._every[0].calls

    whole = [[9, 4], ["epoch", 5], ["begin", 0], ["end", 1], ["begin", 2], ["end", 3]]
    assert called([], 0) == whole
    assert called([{"calls": whole[:-1]}], 3) == whole


def test_a_callback_that_restores_weights_is_left_out():
    """It would start the chief from its own backup, and the others from the run's state."""
    source = "import keras\ndef make():\n    return [keras.callbacks.BackupAndRestore('backup'), keras.callbacks.TerminateOnNaN()]\n"
    kept, warnings = callbacks.sorted_out({"file": "mine.py", "function": "make", "source": source})
    assert [type(one).__name__ for one in kept] == ["TerminateOnNaN"]
    assert warnings == [
        "callbacks=mine.py:make: BackupAndRestore is left out: Lockstep saves states itself, and continues from the exact step"
    ]


def test_keras_callbacks_that_write_are_the_chiefs():
    places = {"filepath", "filename", "directory", "backup_dir", "log_dir", "root"}
    every = [one for one in vars(keras.callbacks).values() if isinstance(one, type)]
    assert {one for one in every if places & set(inspect.signature(one.__init__).parameters)} == set(callbacks.WRITERS)


class AtTwo(keras.callbacks.Callback):
    """Ends the training inside an epoch."""

    monitor = "loss"
    patience = None

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = batch >= 2


@pytest.mark.parametrize(
    ("ending", "named"),
    [
        (lambda: keras.callbacks.EarlyStopping(monitor="loss", patience=1), "EarlyStopping(monitor=loss, patience=1)"),
        (AtTwo, "AtTwo(monitor=loss)"),
        (keras.callbacks.TerminateOnNaN, ""),
    ],
)
def test_callback_that_ends_training_is_named(worker, ending, named):
    created = worker(keras.callbacks.ReduceLROnPlateau("loss", patience=1), ending())
    created.model.stop_training = False
    begin(created)
    for epoch, loss in enumerate((0.5, 0.7)):
        created.on_epoch_begin(epoch)
        for batch in range(4):
            created.on_train_batch_begin(batch)
            created.on_train_batch_end(batch, {"loss": loss})
        created.on_epoch_end(epoch, {"loss": loss})
    assert created.ended_by == named
