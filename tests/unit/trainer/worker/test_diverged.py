"""What is no number ends a run: a step's loss, the validation loss, a weight."""

from types import SimpleNamespace

import numpy as np
import pytest

from trainer.common.errors import Diverged
from trainer.config import loading, schedule
from trainer.step.step_sums import StepSums
from trainer.worker.finite_check import FiniteCheck

COLUMNS = ("loss", "loss", "mae", "out_loss")
BEFORE, CALL = 10, 2
"""Steps before a call, and the step in it whose sums are none."""


def check(settings: dict | None = None, rate: float | None = None, reduction: str = "packed", weights=(), off: bool = False) -> FiniteCheck:
    """The check of a run; `weights` are read when it begins, and may change."""
    config = loading.build({"optimizer": {"learning_rate": 0.5}} | (settings or {}))
    job = SimpleNamespace(config=config, counts=schedule.counts(config, 2, 144))
    choice, results = SimpleNamespace(name=reduction), SimpleNamespace(columns=COLUMNS)
    return FiniteCheck(job, SimpleNamespace(rate=rate, choice=choice, results=results, weights=weights, read=list), off)


def rows(column: int, value: float) -> StepSums:
    """Sums of three steps."""
    sums = StepSums(np.ones((3, 2 + len(COLUMNS)), np.float32))
    sums.metrics[CALL, column] = value
    return sums


HALF = {"settings": {"reduction": {"name": "half", "dtype": "float16"}}, "reduction": "half"}


@pytest.mark.parametrize(
    ("run", "column", "value", "rates", "message"),
    [
        (
            {},
            0,
            np.nan,
            [1.0, 0.5, 0.25],
            r"^the loss became nan at step 13 with learning rate 0.25; lower it \(-e set=optimizer.learning_rate=0.025\)",
        ),
        ({}, 3, np.inf, [1.0, 0.5, 0.25], "^the out_loss became inf at step 13 with learning rate 0.25"),
        ({}, 0, np.nan, [1.0, 0.5], r"at step 13 with learning rate 0\.5;"),
        ({"rate": 0.5}, 0, np.nan, [0.5] * 3, r"lower it \(in compile\(optimizer=...\)\)"),
        (HALF, 0, np.nan, [0.5] * 3, "Or a gradient was too large for float16: reduction.dtype=bfloat16"),
    ],
    ids=["a loss", "an output's loss", "more rows than the call has rates", "a compiled model", "in 16 bits"],
)
def test_a_bad_sum_names_step_rate_and_fix(run, column, value, rates, message):
    with pytest.raises(Diverged, match=message):
        check(**run).check_losses(BEFORE, rows(column, value), np.array(rates))


@pytest.mark.parametrize(("column", "value"), [(0, 1e30), (2, np.nan)])
def test_finite_losses_pass(column, value):
    """A metric that is no number ends no `fit` either."""
    check().check_losses(BEFORE, rows(column, value), np.ones(3))


def test_a_callback_may_end_at_nan_instead():
    """TerminateOnNaN ends the training as in `fit`."""
    tested = check(off=True)
    tested.check_losses(BEFORE, rows(0, np.nan), np.ones(3))
    tested.check(BEFORE, np.nan, "a weight")


def test_validation_loss_names_the_step_before_it():
    with pytest.raises(Diverged, match=r"^the validation loss became nan after step 10 with learning rate 0\.5"):
        check().check(BEFORE, float("nan"), "the validation loss")


@pytest.mark.parametrize(
    ("weight", "number", "ends"), [(-np.inf, True, True), (np.nan, True, True), (-np.inf, False, False), (-1e9, True, False)]
)
def test_weights_that_were_numbers_must_stay_so(weight, number, ends):
    """A layer may hold others from the start, such as a mask of -inf."""
    arrays = [np.ones((2, 2)), np.array([0.0, 0.0 if number else -np.inf]), np.ones(0)]
    tested = check(weights=arrays)
    arrays[1][1] = weight
    if ends:
        with pytest.raises(Diverged, match=f"^a weight became {abs(weight)} after step 10"):
            tested.check_weights(BEFORE)
    else:
        tested.check_weights(BEFORE)
