"""Keras callbacks from the user's own file, in Keras' list of them: every worker calls them with the same numbers, so all do the same."""

import functools
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import keras
import numpy as np
import tensorflow as tf
from keras.src.utils.python_utils import is_default, pythonify_logs

from trainer.common.errors import ConfigError
from trainer.common.safe_text import printable
from trainer.network.array_group import digest
from trainer.user_code import callback_state, user_function
from trainer.user_code.undo import is_of_users_class, is_users
from trainer.user_code.user_function import Function

WRITERS = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.OrbaxCheckpoint,
    keras.callbacks.BackupAndRestore,
    keras.callbacks.TensorBoard,
    keras.callbacks.CSVLogger,
    keras.callbacks.RemoteMonitor,
)
"""Callbacks that write files or send reports."""
SILENCED = (keras.callbacks.ModelCheckpoint, keras.callbacks.CSVLogger, keras.callbacks.TensorBoard)
"""Writers that can be kept from writing."""
LEFT_OUT = (keras.callbacks.BackupAndRestore,)
"""Callbacks that restore weights when a training begins, on one worker, over the state that the run continues from."""
BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
TEST_HOOKS = ("on_test_batch_begin", "on_test_batch_end")
WEIGHTS = "best_weights"
LARGE = 2**16
"""Bytes of an array that is no part of a state while it is as a callback was made with it."""
SETTINGS = ("min_delta", "params")
"""Not part of a state: `fit` sets the second, and Keras turns the sign of the first when it learns in which direction the metric
improves, which it does in every launch."""
NOWHERE = ("filename", "log_dir", "_log_write_dir", "_train_dir", "_val_dir", "_should_trace")
"""Attributes by which writers find where to write, which they do on the chief only."""


WATCHED, LONGEST_DESCRIPTION = ("monitor", "patience"), 120


class Restored(NamedTuple):
    """A callback that gave the model other weights when the training ended."""

    name: str
    """Its class."""
    epoch: int
    """Whose weights they are, from 1; 0 if it does not say."""


class Loop(Protocol):
    """Actions of a training at the hooks of Keras' `fit`, after the user's callbacks; epochs and steps count from 0."""

    def epoch_begins(self, epoch: int) -> None:
        """An epoch begins, or goes on."""

    def train(self, last: int) -> dict[str, Any]:
        """Take the steps of the epoch up to this one that are not taken yet, as many as there are; the logs so far."""

    def batch_ends(self) -> None:
        """The hooks that follow `train` have been called."""

    def steps_end(self) -> None:
        """The last steps of the epoch, or those before a stop, were taken, and validated."""

    def epoch_ends(self, epoch: int, logs: dict[str, Any]) -> None:
        """An epoch is over; `logs` are those of training and validation, and what callbacks added."""

    def train_ends(self, restored: Restored | None) -> None:
        """The training is over; `restored`: who gave the model other weights at its end, if a callback did."""

    def validates(self, epoch: int) -> bool:
        """Return whether the epoch ends with a validation."""

    def test(self, first: int, last: int) -> dict[str, Any]:
        """Evaluate these batches of the validation; the logs so far."""


def _load(given: dict[str, str]) -> list[keras.callbacks.Callback]:
    """Run the function, and leave out what `sorted_out` warns of; ConfigError if it fails, or does not return a list of callbacks."""
    every, _ = sorted_out(given)
    return every


def sorted_out(given: dict[str, str]) -> tuple[list[keras.callbacks.Callback], list[str]]:
    """As `_load`; also a warning for each callback that is left out."""
    function = Function.of(given)
    with user_function.explaining_errors("callbacks", function):
        made = user_function.load("callbacks", function)()
    if not isinstance(made, list | tuple) or not all(isinstance(one, keras.callbacks.Callback) for one in made):
        raise ConfigError(f"callbacks={function.called}: it returns {made!r:.80}; it must return a list of keras.callbacks.Callback")
    warning = "callbacks={}: {} is left out: Lockstep saves states itself, and continues from the exact step"
    out = [warning.format(function.called, type(one).__name__) for one in made if isinstance(one, LEFT_OUT)]
    return [one for one in made if not isinstance(one, LEFT_OUT)], out


def writes_only(callback: keras.callbacks.Callback) -> bool:
    """Return whether a callback is known to do nothing but write, for which the chief is enough; one of the user's own may do anything."""
    return isinstance(callback, WRITERS) and not (is_users(callback) and isinstance(callback, SILENCED))


def on_worker(callbacks: Sequence[keras.callbacks.Callback], is_chief: bool) -> list[keras.callbacks.Callback]:
    """Callbacks that a worker calls; elsewhere than on the chief, the user's own writers write nothing."""
    here = [one for one in callbacks if is_chief or not writes_only(one)]
    for one in here if not is_chief else ():
        if isinstance(one, WRITERS):
            _silence(one)
    return here


def _silence(callback: keras.callbacks.Callback) -> None:
    """Keep a callback from writing."""
    if isinstance(callback, keras.callbacks.CSVLogger):
        callback.filename = os.devnull
    elif isinstance(callback, keras.callbacks.TensorBoard):
        callback._nowhere = tempfile.TemporaryDirectory(prefix="lockstep-")
        callback.log_dir, callback._should_trace = callback._nowhere.name, False
    else:
        callback._save_model = _nothing
    for hook in (name for name in dir(keras.callbacks.Callback) if name.startswith("on_")):
        if not is_default(getattr(callback, hook)):
            setattr(callback, hook, _quiet(callback, getattr(callback, hook)))


def _quiet(callback: keras.callbacks.Callback, hook: Callable[..., None]) -> Callable[..., None]:
    """A hook that may miss what its callback writes on the chief only."""

    @functools.wraps(hook)
    def called(*given: Any, **named: Any) -> None:
        try:
            hook(*given, **named)
        except OSError as error:
            print(f"{type(callback).__name__} writes on the chief only, and fails here: {error}", file=sys.stderr, flush=True)

    return called


def _nothing(*_: Any, **__: Any) -> None:
    pass


def overrides(callbacks: Sequence[keras.callbacks.Callback], hooks: Sequence[str]) -> bool:
    """Return whether any of the callbacks has one of the hooks."""
    return any(not is_default(getattr(one, hook)) for one in callbacks for hook in hooks)


def _described(callback: keras.callbacks.Callback) -> str:
    """A callback's class with what it watches and for how long, as `EarlyStopping(monitor=val_loss, patience=3)`."""
    settings = {name: getattr(callback, name, None) for name in WATCHED}
    shown = [f"{name}={value}" for name, value in settings.items() if isinstance(value, str | int | float)]
    return printable(type(callback).__name__ + (f"({', '.join(shown)})" if shown else ""), LONGEST_DESCRIPTION)


class Callbacks(keras.callbacks.CallbackList):
    """The callbacks of a run on one worker, then Keras' History, then a `Loop`.

    Continued inside an epoch, it leaves out the hooks that an earlier launch has called.
    """

    _loop: Loop

    def __init__(self, given: dict[str, str] | None, model: keras.Model, epochs: int, steps: int, is_chief: bool):
        """Load them for a compiled model; `given` is `train.callbacks`, `steps` are those of an epoch."""
        self._every = _load(given) if given else []
        self._here, self._is_chief = on_worker(self._every, is_chief), is_chief
        super().__init__([*self._here], add_history=True, model=model, epochs=epochs, steps=steps, verbose=0)
        # Without hooks of batches, Keras would call the empty list in another thread after every batch.
        self._async_train = self._async_test = self._async_predict = False
        # Keras' own keep weights only if they are to restore them; those of a user's own may always do.
        self._restoring = [one for one in self._here if getattr(one, "restore_best_weights", hasattr(one, WEIGHTS))]
        self.variables = [tf.Variable(weight, trainable=False) for _ in self._restoring for weight in model.get_weights()]
        """Best weights that callbacks keep, as a state holds them."""
        self.per_batch, self.per_test_batch = overrides(self._every, BATCH_HOOKS), overrides(self._every, TEST_HOOKS)
        """True if a callback, of any worker, has hooks of training's or of validation's batches."""
        self.block = model.steps_per_execution
        """Steps between two hooks of batches."""
        self.ends_at_nan = any(isinstance(one, keras.callbacks.TerminateOnNaN) for one in self._every)
        self._before: Sequence[dict[str, Any]] = ()
        self.forgotten: dict[str, str] = {}
        """Attributes of the user's callbacks that a state does not hold, by name, and why; known once there was a `state`."""
        self._given = {(id(one), name): found for one in self._here for name, value in vars(one).items() if (found := _mark(value))}
        self._done, self.batch = 0, 0
        self.ended_by = ""
        """The callback on this worker that ended the training, with its settings; empty while none has."""

    @property
    def any(self) -> bool:
        """True if there are callbacks on this worker."""
        return bool(self._here)

    @property
    def anywhere(self) -> bool:
        """True if there are callbacks on the chief, which has all of them."""
        return bool(self._every)

    def attach(self, loop: Loop, before: Sequence[dict[str, Any]], done: int) -> None:
        """Let a training hear of the hooks, last of all; of an earlier launch: the callbacks' `state`, and steps of its last epoch."""
        self._loop, self._before, self._done = loop, before, done

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin the training, or continue it with what callbacks remembered in an earlier launch."""
        for callback in self._here if self._before else ():
            # What it wrote before is there.
            if isinstance(callback, keras.callbacks.CSVLogger):
                callback.append = True
        super().on_train_begin(logs)
        for callback, values in zip([*self._every, self._history], self._before, strict=False):
            if callback in self.callbacks:
                self._restore(callback, values)
        count = len(self.model.weights)
        for number, callback in enumerate(self._restoring):
            if getattr(callback, WEIGHTS, None) is True:
                callback.best_weights = [one.numpy() for one in self.variables[count * number : count * (number + 1)]]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """See `Loop.epoch_begins`."""
        if not self._done:
            self._call("on_epoch_begin", epoch, pythonify_logs(logs))
        self._loop.epoch_begins(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Before steps, the first of which is `batch`."""
        self.batch = batch
        if self.per_batch and batch >= self._done:
            self._call("on_train_batch_begin", batch, pythonify_logs(logs))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """After steps, the last of which is `batch`."""
        if self.per_batch and batch >= self._done:
            self._call("on_train_batch_end", batch, pythonify_logs(logs))
        self._loop.batch_ends()

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Before batches of validation, the first of which is `batch`."""
        self.batch = batch
        super().on_test_batch_begin(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """See `Loop.epoch_ends`."""
        self._loop.steps_end()
        self._done, logs = 0, dict(logs or {})
        self._call("on_epoch_end", epoch, logs)
        self._loop.epoch_ends(epoch, logs)

    def _call(self, hook: str, number: int, logs: Any) -> None:
        """Call a hook of each callback in order, and note which of them ends the training."""
        for callback in self.callbacks:
            before = self._is_ended
            getattr(callback, hook)(number, logs)
            if self._is_ended and not before:
                self.ended_by = _described(callback)

    @property
    def _is_ended(self) -> bool:
        return bool(getattr(self.model, "stop_training", False))

    def on_train_end(self, logs: Any = None) -> None:
        """See `Loop.train_ends`."""
        restored, before = None, self._weights()
        for callback in self.callbacks:
            callback.on_train_end(logs)
            after = self._weights()
            if not all(map(np.array_equal, after, before)):
                epoch = getattr(callback, "best_epoch", None)
                restored = Restored(type(callback).__name__, epoch + 1 if isinstance(epoch, int) else 0)
            before = after
        self._loop.train_ends(restored)

    def _weights(self) -> list[np.ndarray]:
        return self.model.get_weights() if self.any else []

    def state(self) -> list[dict[str, Any]]:
        """States of the callbacks that can be `remembered`, in order, and of Keras' History; best weights go to `variables`."""
        count = len(self.model.weights)
        for number, callback in enumerate(self._restoring):
            if self._has_weights(callback):
                for variable, value in zip(self.variables[count * number : count * (number + 1)], callback.best_weights, strict=True):
                    variable.assign(value)
        encode = callback_state.Encoder({id(one) for one in [*self.model.variables, *self.model.optimizer.variables]})
        states = [self._kept(encode, one, self._own_values(one)) if one in self._here else {} for one in self._every]
        return [*states, {"epoch": self._history.epoch, "history": self._kept(encode, self._history, self._history.history)}]

    def _own_values(self, callback: keras.callbacks.Callback) -> dict[str, Any]:
        """Attributes of a callback by name, but for the ones that are no part of a state; True for weights that are in `variables`."""
        best = {WEIGHTS: True} if self._has_weights(callback) else {}
        return {name: value for name, value in (vars(callback) | best).items() if not self._is_left_out(callback, name, value)}

    def _is_left_out(self, callback: keras.callbacks.Callback, name: str, value: Any) -> bool:
        mark = self._given.get((id(callback), name))
        return name in SETTINGS or (mark is not None and mark == _mark(value))

    def _kept(self, encode: callback_state.Encoder, callback: keras.callbacks.Callback, values: dict[str, Any]) -> dict[str, Any]:
        kept = dict[str, Any]()
        for name, value in values.items():
            try:
                kept[name] = encode(value)
            except Exception as error:
                if is_users(callback) and (is_of_users_class(value) or not callable(value)):
                    self._forget(callback, name, error)
        return kept

    def _restore(self, callback: keras.callbacks.Callback, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if not (name in NOWHERE and not self._is_chief):
                try:
                    setattr(callback, name, callback_state.decoded(value, getattr(callback, name, None)))
                except Exception as error:
                    self._forget(callback, name, error)

    def _forget(self, callback: keras.callbacks.Callback, name: str, error: Exception) -> None:
        self.forgotten[f"{type(callback).__name__}.{name}"] = str(error) or type(error).__name__

    def _has_weights(self, callback: keras.callbacks.Callback) -> bool:
        """Return whether a callback keeps weights of the model now."""
        weights = getattr(callback, WEIGHTS, None)
        return callback in self._restoring and isinstance(weights, list | tuple) and len(weights) == len(self.model.weights)


def _mark(value: Any) -> str:
    """Mark of large arrays, which are data unless they change; empty for anything else."""
    arrays = tf.nest.flatten(value) if isinstance(value, np.ndarray | list | tuple) else []
    if not arrays or not all(isinstance(one, np.ndarray) and one.dtype.kind in callback_state.NUMBERS for one in arrays):
        return ""
    size = sum(one.nbytes for one in arrays)
    # A state would not hold more.
    return "" if size <= LARGE else digest(arrays) if size <= callback_state.LARGEST else str([*map(id, arrays)])
