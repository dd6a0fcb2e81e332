"""Keras callbacks from the user's own file: every worker calls them with the same numbers, so all workers do the same.

Hooks of batches are called once per call of several steps, as with Keras' `steps_per_execution`.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer import own
from trainer.errors import ConfigError
from trainer.own import Function

WRITERS = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.BackupAndRestore,
    keras.callbacks.TensorBoard,
    keras.callbacks.CSVLogger,
    keras.callbacks.RemoteMonitor,
)
"""Callbacks that write files or send reports, for which the chief is enough."""
LEFT_OUT = (keras.callbacks.BackupAndRestore,)
"""Callbacks that restore weights when a training begins, on one worker, over the state that the run continues from."""
WEIGHTS = "best_weights"
SETTINGS = ("min_delta",)
"""Not part of a state: Keras turns its sign when it learns in which direction the metric improves, which it does in every launch."""


def load(given: dict[str, str]) -> list[keras.callbacks.Callback]:
    """Run the function, and leave out what `sorted_out` warns of; ConfigError if it fails, or does not return a list of callbacks."""
    every, _ = sorted_out(given)
    return every


def sorted_out(given: dict[str, str]) -> tuple[list[keras.callbacks.Callback], list[str]]:
    """As `load`; also a warning for each callback that is left out."""
    function = Function.of(given)
    with own.explaining_errors("callbacks", function):
        made = own.load("callbacks", function)()
    if not isinstance(made, list | tuple) or not all(isinstance(one, keras.callbacks.Callback) for one in made):
        raise ConfigError(f"callbacks={function.called}: it returns {made!r:.80}; it must return a list of keras.callbacks.Callback")
    warning = "callbacks={}: {} is left out: Lockstep saves states itself, and continues from the exact step"
    out = [warning.format(function.called, type(one).__name__) for one in made if isinstance(one, LEFT_OUT)]
    return [one for one in made if not isinstance(one, LEFT_OUT)], out


class Callbacks:
    """The callbacks of a run on one worker."""

    def __init__(self, given: dict[str, str] | None, model: keras.Model, epochs: int, steps: int, is_chief: bool):
        """Load them for a compiled model; `given` is `train.callbacks`, `steps` are those of an epoch."""
        self._model, every = model, load(given) if given else []
        self._every, self._callbacks = every, [one for one in every if is_chief or not isinstance(one, WRITERS)]
        self._list = keras.callbacks.CallbackList(self._callbacks, model=model, epochs=epochs, steps=steps, verbose=0)
        # Keras' own keep weights only if they are to restore them; those of a user's own may always do.
        restoring = [one for one in self._callbacks if getattr(one, "restore_best_weights", hasattr(one, WEIGHTS))]
        self.variables = [tf.Variable(weight, trainable=False) for _ in restoring for weight in model.get_weights()]
        """Best weights that callbacks keep, as a state holds them."""
        self._restoring = restoring
        model.stop_training = False

    @property
    def any(self) -> bool:
        """Whether there are callbacks on this worker."""
        return bool(self._callbacks)

    @property
    def anywhere(self) -> bool:
        """Whether there are callbacks on the chief, which has all of them."""
        return bool(self._every)

    def begin(self, before: Sequence[dict[str, Any]]) -> None:
        """Begin the training, or continue it with `state` of an earlier launch and its `variables`."""
        self._list.on_train_begin()
        for callback, values in zip(self._every, before, strict=False):
            for name, value in values.items() if callback in self._callbacks else ():
                setattr(callback, name, value)
        count = len(self._model.weights)
        for number, callback in enumerate(self._restoring):
            if getattr(callback, WEIGHTS, None) is True:
                callback.best_weights = [one.numpy() for one in self.variables[count * number : count * (number + 1)]]

    def epoch_begins(self, epoch: int) -> None:
        """`epoch` counts from 1."""
        self._list.on_epoch_begin(epoch - 1)

    def call_begins(self, step: int) -> None:
        """Before a call of several steps, the first of which is `step` of its epoch, from 0."""
        self._list.on_train_batch_begin(step)

    def call_ends(self, step: int, logs: dict[str, float]) -> None:
        """After a call of several steps, the last of which is `step` of its epoch, from 1."""
        self._list.on_train_batch_end(step - 1, logs)

    def epoch_ends(self, epoch: int, logs: dict[str, float]) -> bool:
        """Whether a callback ends the training."""
        self._list.on_epoch_end(epoch - 1, dict(logs))
        return bool(self._model.stop_training)

    def end(self) -> None:
        """The training is over."""
        self._list.on_train_end()

    def state(self) -> list[dict[str, Any]]:
        """The callbacks' numbers and texts, as plain JSON; best weights go to `variables`."""
        count = len(self._model.weights)
        for number, callback in enumerate(self._restoring):
            if self._has_weights(callback):
                for variable, value in zip(self.variables[count * number : count * (number + 1)], callback.best_weights, strict=True):
                    variable.assign(value)
        return [_plain(vars(callback)) | ({WEIGHTS: True} if self._has_weights(callback) else {}) for callback in self._callbacks]

    def _has_weights(self, callback: keras.callbacks.Callback) -> bool:
        """Whether it keeps weights of the model now."""
        weights = getattr(callback, WEIGHTS, None)
        return callback in self._restoring and isinstance(weights, list | tuple) and len(weights) == len(self._model.weights)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    converted = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    return {name: value for name, value in converted.items() if isinstance(value, bool | int | float | str | None) and name not in SETTINGS}
