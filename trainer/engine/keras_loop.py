"""Keras' own `fit` as the outer loop of a training, with epochs, validation, callbacks and logs; data and steps are Lockstep's."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from trainer.common.errors import LockstepError
from trainer.common.patching import replaced
from trainer.user_code.callbacks import Callbacks, Loop


def fit(model: keras.Model, loop: Loop, callbacks: Callbacks, first: int, batches: int) -> None:
    """Train a compiled model by `keras.Model.fit`, with steps and evaluations by `loop`, whose exceptions end it.

    Args:
        model: compiled; its metrics hold only values that `loop` stores there.
        loop: takes the steps.
        callbacks: the model's callbacks, attached to `loop`.
        first: number of the first epoch, from 0.
        batches: number of validation batches; 0 if there is no validation.
    """
    params, nothing = callbacks.params, tf.data.Dataset.range(1).repeat()

    def train(_: Any) -> dict[str, Any]:
        return loop.train(callbacks.batch + callbacks.block - 1)

    def test(_: Any) -> dict[str, Any]:
        return loop.test(callbacks.batch, min(callbacks.batch + callbacks.block, batches) - 1)

    own = model.evaluate

    def evaluate(*arguments: Any, **named: Any) -> Any:
        with contextlib.ExitStack() as ours:
            # A callback may evaluate the model, too.
            if named.get("_use_cached_eval_dataset"):
                ours.enter_context(replaced(model, "test_function", test))
                ours.enter_context(replaced(model, "make_test_function", _nothing))
            return own(*arguments, **named)

    with (
        # Data and steps do not belong to the strategy.
        replaced(model, "_distribute_strategy", None),
        replaced(model, "train_function", train),
        replaced(model, "make_train_function", _made_again),
        replaced(model, "evaluate", evaluate),
        replaced(model, "_get_metrics_result_or_logs", dict),
    ):
        keras.Model.fit(
            model,
            nothing,
            shuffle=False,
            epochs=params["epochs"],
            initial_epoch=first,
            steps_per_epoch=params["steps"],
            validation_data=nothing if batches else None,
            validation_steps=batches or None,
            validation_freq=_Epochs(loop.validates),
            callbacks=callbacks,
            verbose=0,
        )


def _nothing(force: bool = False) -> None:
    """There is one."""


def _made_again(force: bool = False) -> None:
    if force:
        raise LockstepError(
            "a callback makes the model's train_function again (force=True), as after a layer was frozen: Lockstep's steps are made once. "
            "Fix: freeze layers before the training begins, and train the second part as a run of its own, -e weights=FILE"
        )


class _Epochs(list[int]):
    """Epochs that end with a validation, in the form that Keras uses: counted from 1."""

    def __init__(self, validates: Callable[[int], bool]):
        super().__init__()
        self._validates = validates

    def __contains__(self, epoch: Any) -> bool:
        return self._validates(epoch - 1)
