"""How long trials will take, before one has ended."""

import pytest

from control.campaign.timings import Timing, Trial
from control.runs.results.summary import Summary
from control.sweep.scaling import forecast
from control.sweep.scaling.forecast import Speed

TRIALS = [Trial("weak", 0, 2, workers, 1) for workers in (1, 2, 4)]
SPEED = Speed(workers=4, per_s=400.0, around_s=10.0, epoch_s=1.0)


def phase(t, name):
    return {"kind": "phase", "t": t, "phase": name}


def steps(rate, seconds):
    return {"kind": "steps", "images_per_s": rate, "seconds": seconds}


def test_fewer_workers_may_be_as_fast_or_slower():
    assert SPEED.trial_s(TRIALS[0], 4000) == (10 + 2 * (10 + 1), 10 + 2 * (40 + 1))
    assert SPEED.trial_s(TRIALS[2], 4000) == (32, 32)
    speed = Speed(workers=4, per_s=400.0, one_machine=True)
    assert speed.steps_s(1, 4000) == (10, 10)


def test_the_warm_ups_extra_work_is_left_out():
    """13 s end to end, 4 s of it training; the 3 s of choosing the method do not recur in the trials."""
    phases = [phase(1.0, "building"), phase(2.0, "choosing how to send gradients"), phase(5.0, "tracing")]
    records = [*phases, steps(10.0, 2.0), steps(90.0, 1.0)]
    summary = Summary(workers=3, seconds_end_to_end=13.0, seconds_training=4.0)
    assert Speed.of_warm_up(summary, records, False) == Speed(3, 90.0, 13.0 - 4.0 - 3.0 + forecast.COMMAND_S, 1.0)
    summary = Summary(workers=3, seconds_end_to_end=13.0, seconds_training=4.0)
    assert Speed.of_warm_up(summary, [steps(10.0, 2.0)], False) is None
    assert forecast.warmed_up(TRIALS, None, 4000, "image") == "warm-up done"


@pytest.mark.parametrize(("workers", "words"), [(4, "about 0:30"), (1, "0:30 to 1:00")])
def test_a_wide_forecast_is_a_range(workers, words):
    assert Speed(2 * workers if workers == 1 else workers, 400.0, around_s=0.0).together([Trial("weak", 0, 3, workers, 1)], 4000) == words


def test_the_warm_up_says_how_long_trials_take():
    assert forecast.warmed_up(TRIALS, SPEED, 4000, "row") == "warm-up: 400 rows/s with 4 workers; 3 trials will take 1:36 to 2:56"
    said = forecast.warmed_up(TRIALS, SPEED, 400, "image").splitlines()[1]
    assert said == (
        "[WARN] trials of 2 epochs train for 2 s or less, and noise may hide how fast they are; for a surer answer: -e epochs=10"
    )


def measured(epochs):
    return Timing(1, 1, epochs, 30.0, 20.0, 100.0, 0, "weak", "SUCCEEDED", "a")


@pytest.mark.parametrize(
    ("left", "rows", "record", "words"),
    [
        ([], [], {}, "nothing is left to measure"),
        (TRIALS, [], {}, "3 trials; how long is known after the warm-up"),
        (TRIALS, [], {"speed": SPEED.__dict__, "train_images": 4000}, "1:36 to 2:56 for 3 trials, by the warm-up before"),
        (TRIALS, [measured(2)], {}, "about 1:30 for 3 trials, as those before"),
        (TRIALS, [measured(3)], {}, "3 trials; how long is known after the warm-up"),
    ],
)
def test_a_plan_says_what_is_known(left, rows, record, words, monkeypatch):
    monkeypatch.setattr(forecast, "earlier", lambda plan: None)
    assert forecast.before(left, rows, record, {}) == words


def test_an_earlier_run_gives_a_forecast(monkeypatch):
    monkeypatch.setattr(forecast, "earlier", lambda plan: ("first", SPEED))
    assert forecast.before(TRIALS, [], {"train_images": 4000}, {}) == "1:36 to 2:56 for 3 trials, at the speed of run first"
