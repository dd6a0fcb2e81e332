"""What is no number ends a run: a step's loss, the validation loss, a weight."""

from types import SimpleNamespace

import numpy as np
import pytest

from trainer.common.errors import Diverged
from trainer.config import loading, schedule
from trainer.step.step_sums import StepSums
from trainer.worker.loop import Trainer

COLUMNS = ("loss", "loss", "mae", "out_loss")
BEFORE, CALL = 10, 2
"""Steps before a call, and the step in it whose sums are none."""


def trainer(settings: dict | None = None, rate: float | None = None, reduction: str = "packed") -> Trainer:
    """A run after 10 steps, with the parts that look for such numbers."""
    made = Trainer.__new__(Trainer)
    config = loading.build({"optimizer": {"learning_rate": 0.5}} | (settings or {}))
    made.job = SimpleNamespace(config=config, counts=schedule.counts(config, 2, 144))
    made.engine = SimpleNamespace(rate=rate, choice=SimpleNamespace(name=reduction), results=SimpleNamespace(columns=COLUMNS), weights=[])
    made.progress, made.callbacks = SimpleNamespace(step=BEFORE), SimpleNamespace(ends_at_nan=False)
    return made


def rows(column: int, value: float) -> StepSums:
    """Sums of three steps."""
    sums = StepSums(np.ones((3, 2 + len(COLUMNS)), np.float32))
    sums.metrics[CALL, column] = value
    return sums


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (0, np.nan, r"^the loss became nan at step 13 with learning rate 0.25; lower it \(-e set=optimizer.learning_rate=0.025\)"),
        (3, np.inf, "^the out_loss became inf at step 13 with learning rate 0.25"),
    ],
)
def test_a_bad_sum_names_step_and_rate(column, value, message):
    with pytest.raises(Diverged, match=message):
        trainer()._check_finite(rows(column, value), np.array([1.0, 0.5, 0.25]))


@pytest.mark.parametrize(("column", "value"), [(0, 1e30), (2, np.nan)])
def test_finite_losses_pass(column, value):
    """A metric that is no number ends no `fit` either."""
    trainer()._check_finite(rows(column, value), np.ones(3))


def test_a_callback_may_end_at_nan_instead():
    """TerminateOnNaN ends the training as in `fit`."""
    tested = trainer()
    tested.callbacks.ends_at_nan = True
    tested._check_finite(rows(0, np.nan), np.ones(3))
    tested._check_update(np.nan, "a weight")


def test_steps_that_ended_later_have_the_last_rate():
    """An engine may return more rows than the call has rates."""
    with pytest.raises(Diverged, match=r"at step 13 with learning rate 0\.5;"):
        trainer()._check_finite(rows(0, np.nan), np.array([1.0, 0.5]))


@pytest.mark.parametrize(
    ("rate", "reduction", "dtype", "fix"),
    [
        (0.5, "packed", "bfloat16", r"lower it \(in compile\(optimizer=...\)\)"),
        (None, "half", "float16", "Or a gradient was too large for float16: reduction.dtype=bfloat16"),
    ],
)
def test_fix_depends_on_what_trains(rate, reduction, dtype, fix):
    with pytest.raises(Diverged, match=fix):
        trainer({"reduction": {"name": reduction, "dtype": dtype}}, rate, reduction)._check_finite(rows(0, np.nan), np.full(3, 0.5))


def test_validation_loss_names_the_step_before_it():
    with pytest.raises(Diverged, match=r"^the validation loss became nan after step 10 with learning rate 0\.5"):
        trainer()._check_update(float("nan"), "the validation loss")


@pytest.mark.parametrize(
    ("weight", "number", "ends"), [(-np.inf, True, True), (np.nan, True, True), (-np.inf, False, False), (-1e9, True, False)]
)
def test_weights_that_were_numbers_must_stay_so(weight, number, ends):
    """A layer may hold others from the start, such as a mask of -inf."""
    made = trainer()
    arrays = [np.ones((2, 2)), np.array([0.0, weight]), np.ones(0)]
    made.engine.read, made._numbers = lambda _: arrays, [True, number, True]
    if ends:
        with pytest.raises(Diverged, match=f"^a weight became {abs(weight)} after step 10"):
            made._check_weights()
    else:
        made._check_weights()
