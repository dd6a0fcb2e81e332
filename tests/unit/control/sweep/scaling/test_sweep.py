"""What a sweep measures and in which order; its file of timings."""

import dataclasses

import pytest

from control.campaign import timings
from control.campaign.timings import Timing, Trial
from control.sweep.scaling import design, forecast
from control.sweep.scaling.design import Wanted
from trainer.common.errors import ConfigError, LockstepError

WANTED = Wanted((1, 2, 3, 4, 5), 3, 3, (0,), "weak")


def timing(trial, state="SUCCEEDED", **changes):
    took = (40.5, 30.25, 1200.0) if state == "SUCCEEDED" else (None, None, None)
    row = Timing(trial.workers, trial.repeat, trial.epochs, *took, trial.checkpoint_every, trial.scaling, state, "node1 node2")
    return dataclasses.replace(row, **changes)


@pytest.mark.parametrize(
    ("text", "actual"),
    [("3", (3,)), ("1-5", (1, 2, 3, 4, 5)), ("5,1,3", (1, 3, 5)), ("1-2,2-3", (1, 2, 3)), ("2-2", (2,)), ("1, 3", (1, 3))],
)
def test_numbers(text, actual):
    assert design.numbers("workers", text) == actual


@pytest.mark.parametrize("text", ["", "0", "5-1", "1-", "-3", "a", "1,,2", "1.5", "²"])
def test_what_is_no_list_of_numbers(text):
    with pytest.raises(ConfigError, match=r"workers=.*: expected whole numbers from 1, as in 3 or 1,3,5 or 1-5$"):
        design.numbers("workers", text)


def test_too_many_numbers():
    with pytest.raises(ConfigError, match="these are more than 500 numbers; measure fewer"):
        design.numbers("workers", "1-1000000")


def test_numbers_may_begin_at_zero():
    assert design.numbers("checkpoint_every", "0,50", least=0) == (0, 50)


def test_every_trial_comes_once_in_repeat_blocks():
    trials = WANTED.order(17)
    assert len(trials) == len(set(trials)) == 15
    for repeat in (1, 2, 3):
        block = trials[5 * repeat - 5 : 5 * repeat]
        assert {trial.repeat for trial in block} == {repeat}
        assert sorted(trial.workers for trial in block) == [1, 2, 3, 4, 5]


def test_the_order_comes_from_the_seed():
    assert WANTED.order(17) == WANTED.order(17)
    orders = {tuple(trial.workers for trial in WANTED.order(seed)) for seed in range(20)}
    assert len(orders) == 20
    blocks = [tuple(trial.workers for trial in WANTED.order(seed)[:5]) for seed in range(200)]
    firsts = [block[0] for block in blocks]
    assert all(20 <= firsts.count(n) <= 60 for n in WANTED.workers)


def test_more_repeats_keep_order_of_earlier_ones():
    assert dataclasses.replace(WANTED, repeats=5).order(17)[:15] == WANTED.order(17)


def test_names_of_runs_are_unique_and_short():
    wanted = Wanted((1, 12), 2, 3, (0, 50, 1000), "weak")
    trials = [*wanted.order(0), *dataclasses.replace(wanted, scaling="strong").order(0), *dataclasses.replace(wanted, epochs=1).order(0)]
    names = [trial.run_name("a" * 32) for trial in trials]
    assert len(set(names)) == len(trials)
    assert max(map(len, names)) <= 64
    assert Trial("weak", 0, 3, 4, 2).run_name("pi") == "pi.w4-e3-r2"
    assert Trial("strong", 50, 3, 4, 2).run_name("pi") == "pi.s4-c50-e3-r2"


def test_labels():
    assert Trial("weak", 0, 3, 1, 2).label == "1 worker, repeat 2"
    assert Trial("weak", 50, 3, 4, 1).label == "4 workers, state saved every 50 steps, repeat 1"


def test_time_left():
    trials = [Trial("weak", 0, 3, n, 1) for n in (1, 2, 4)]
    pace = forecast.timing_pace([])
    assert pace.left(trials) is None
    for trial, seconds in ((trials[0], 10.0), (trials[0], 30.0), (trials[0], 12.0), (trials[1], 20.0)):
        pace.add(trial, seconds)
    assert pace.left(trials) == 12.0 + 20.0 + 16.0
    assert pace.left([]) == 0
    assert forecast.timing_pace([timing(trials[0]), timing(trials[1], "FAILED")]).expected(trials[2]) == 40.5


def test_finding_a_sweep():
    assert design.find(["pi", "lab"], "pi") == "pi"
    with pytest.raises(ConfigError, match=r"^sweep=pj: no such sweep.*pi.*; there are: pi, lab$"):
        design.find(["pi", "lab"], "pj")


# --- timings.csv


def test_rows_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "sweeps" / "pi" / "timings.csv"
    rows = [timing(trial) for trial in WANTED.order(0)[:3]]
    rows[1] = timing(rows[1].trial, "FAILED")
    for row in rows:
        timings.put(path, row)
    assert timings.read(path) == rows
    assert path.read_text().splitlines()[0] == (
        "workers,repeat,epochs,seconds_end_to_end,seconds_training,images_per_s,checkpoint_every,scaling,state,hosts"
    )
    assert [row.measured for row in rows] == [True, False, True]
    assert [name.name for name in path.parent.iterdir()] == ["timings.csv"]


def test_a_trial_has_one_row(tmp_path):
    path, trial = tmp_path / "timings.csv", Trial("weak", 0, 3, 2, 1)
    timings.put(path, timing(trial, "FAILED"))
    timings.put(path, timing(Trial("weak", 0, 3, 2, 2)))
    timings.put(path, timing(trial))
    assert [(row.repeat, row.state) for row in timings.read(path)] == [(2, "SUCCEEDED"), (1, "SUCCEEDED")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", r"timings\.csv: its columns are \['a', 'b'\], expected workers, repeat, .*; move it away to measure anew"),
        (",".join(timings.STORE.columns) + "\n1,x,3,,,,0,weak,FAILED,n\n", r"line 2: invalid literal .*'x'; remove that line"),
        (",".join(timings.STORE.columns) + "\n1,2\n", r"line 2: .*; remove that line to measure its trial anew"),
    ],
)
def test_a_file_that_is_none_of_ours(tmp_path, text, message):
    path = tmp_path / "timings.csv"
    path.write_text(text)
    with pytest.raises(LockstepError, match=message):
        timings.read(path)
