"""A sweep's trials: tried once more when they fail, written down one by one, whatever becomes of each."""

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from control.campaign import timings
from control.campaign.store import UnderWay
from control.campaign.timings import Timing, Trial
from control.common.child_playbooks import Interrupted
from control.sweep.scaling.timing_trials import TimingBench as Bench
from control.sweep.tasks.run_trials import _run_all
from trainer.common.errors import LockstepError
from trainer.common.files import write_json

TRIALS = [Trial("weak", 0, 3, workers, 1) for workers in (2, 1, 3)]


class Line:
    def __init__(self):
        self.printed, self.shown = [], []

    def print(self, line):
        self.printed.append(line)

    def update(self, line):
        self.shown.append(line)

    def end(self):
        pass


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """A sweep whose trials end as the list `outcomes` says: seconds end to end, None for a failure, or an exception."""
    actual = {"name": "pi", "folder": str(tmp_path / "pi"), "global_batch": 192, "called": "image", "hosts": ["a 1", "b 2", "c 3"]}
    actual["trials"] = [asdict(trial) for trial in TRIALS]
    write_json(tmp_path / "pi" / "summary.json", {"name": "pi"})
    bench = Bench(actual, {}, lambda: False)
    made = SimpleNamespace(line=Line(), bench=bench, outcomes=[], cleared=0, prepared=0)

    def measure(self, planned, hosts, ended):
        trial = planned.trial
        assert hosts == ["a", "b", "c"]
        outcome = made.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        took = (outcome, outcome - 10, 100.0) if outcome else (None, None, None)
        return Timing(trial.workers, trial.repeat, trial.epochs, *took, 0, "weak", "SUCCEEDED" if outcome else "FAILED", "a")

    def clear(self):
        made.cleared += 1

    monkeypatch.setattr(UnderWay, "elapsed", 5.0)
    monkeypatch.setattr(Bench, "measure", measure)
    monkeypatch.setattr(Bench, "clear_leftover", clear)

    def prepare(self, line):
        made.prepared += 1

    monkeypatch.setattr(Bench, "prepare", prepare)
    monkeypatch.setattr(Bench, "last_lines", lambda self, run: [f"end of {run}"])
    return made


def rows(sweep):
    return [(row.workers, row.state) for row in timings.read(Path(sweep.bench.folder) / "timings.csv")]


def test_one_warm_up_then_every_trial(sweep):
    sweep.outcomes = [40.0, 50.0, 30.0]
    _run_all(sweep.bench, sweep.line)
    assert (sweep.cleared, sweep.prepared) == (1, 1)
    assert rows(sweep) == [(2, "SUCCEEDED"), (1, "SUCCEEDED"), (3, "SUCCEEDED")]
    assert sweep.line.printed[0] == ("trial 1 of 3: 2 workers, repeat 1: 40.0 s end to end, 30.0 s training, 100 images/s  0:10 left")


def test_a_trial_that_fails_is_tried_once_more(sweep):
    sweep.outcomes = [None, 40.0, 50.0, 30.0]
    _run_all(sweep.bench, sweep.line)
    assert [state for _, state in rows(sweep)] == ["SUCCEEDED"] * 3
    assert sweep.line.printed[0] == "trial 1 of 3 failed and is tried once more:\n  end of pi.w2-e3-r1"


def test_trial_that_fails_twice_ends_no_sweep(sweep):
    sweep.outcomes = [40.0, None, None, 30.0]
    _run_all(sweep.bench, sweep.line)
    assert rows(sweep) == [(2, "SUCCEEDED"), (1, "FAILED"), (3, "SUCCEEDED")]
    assert "trial 2 of 3: 1 worker, repeat 1: FAILED twice  0:05 left" in sweep.line.printed


def test_interrupted_sweep_keeps_its_rows_and_clears_hosts(sweep):
    sweep.outcomes = [40.0, Interrupted()]
    with pytest.raises(LockstepError, match=r"^sweep=pi was interrupted; its measured trials are kept: the same command continues"):
        _run_all(sweep.bench, sweep.line)
    assert rows(sweep) == [(2, "SUCCEEDED")]
    assert sweep.cleared == 2
