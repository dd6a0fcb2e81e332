"""Trials one after another: what is written, what is kept, what is taken away. The child playbooks are stand-ins."""

import contextlib
import json
import multiprocessing
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from control.campaign import timings
from control.campaign.store import alone
from control.campaign.timings import Trial
from control.common.child_playbooks import Interrupted, Playbook
from control.runs.results.summary import Summary
from control.sweep.scaling import timing_trials
from control.sweep.scaling.timing_trials import TimingBench
from control.sweep.scaling.trials import PlannedTrial
from trainer.common.errors import LockstepError
from trainer.common.files import write_json

TRIAL = Trial("weak", 0, 3, 2, 1)
NODES = ["node1", "node2", "node3"]
GOOD = {"state": "SUCCEEDED", "seconds_end_to_end": 41.5, "seconds_training": 30.1, "images_per_s": 1310.0}


def planned(trial):
    return PlannedTrial(trial, trial.run_name("pi"), trial.label)


def never():
    return False


@pytest.fixture
def line():
    return SimpleNamespace(update=lambda text: None, print=lambda text: None)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A bench whose children do what the list `outcomes` says, and are noted in `played`."""
    folder = tmp_path / "sweeps" / "pi"
    hosts = ["node1 10.0.0.1", "node2 10.0.0.2", "node3 10.0.0.3"]
    actual = {"name": "pi", "folder": str(folder), "global_batch": 192, "called": "image", "train_images": 600, "hosts": hosts}
    actual["trials"] = [asdict(Trial("weak", 0, 3, 3, 1))]
    made = TimingBench(actual, {"worker_port": "23456"}, never)
    made.outcomes, made.played = [], []
    folder.mkdir(parents=True)
    write_json(folder / "summary.json", {"name": "pi", "reduction": "packed"})

    def run(self, ended, meanwhile=lambda: None):
        made.played.append((self.path, self.variables))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as stream:
            stream.write(f"{self.path} says\n")
        if "remove" in self.path:
            return made.removal
        meanwhile()
        outcome = made.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        local = folder / "trials" / self.variables["run"]
        (local / "state").mkdir(parents=True)
        write_json(local / "summary.json", outcome)
        write_json(local / "cluster.json", {"hosts": [{"name": "node1"}]})
        return 0 if outcome["state"] == "SUCCEEDED" else 2

    made.removal = 0
    monkeypatch.setattr(Playbook, "run", run)
    return made


def marks(bench):
    """Trials of which something may be left on the hosts."""
    return {path.stem: json.loads(path.read_text()) for path in (bench.folder / "under_way").glob("*.json")}


def test_trial_is_launch_with_sweeps_own_configuration(bench):
    bench.outcomes = [GOOD]
    row = bench.measure(planned(TRIAL), NODES, never)
    assert row == timings.Timing(2, 1, 3, 41.5, 30.1, 1310.0, 0, "weak", "SUCCEEDED", "node1 node2")
    ((path, variables),) = bench.played
    assert path == "playbooks/stages/trial.yml"
    assert variables == {
        "worker_port": "23456",
        "run": "pi.w2-e3-r1",
        "sweep": "pi",
        "config": str(bench.folder / "config.yml"),
        "workers": "node1,node2",
        "epochs": 3,
        "set": "train.global_batch=null,checkpoint.every_steps=null,reduction.name=packed,recovery.max_restarts=0,recovery.elastic=false,"
        "train.patience=null",
    }
    assert marks(bench) == {}
    assert sorted(path.name for path in (bench.folder / "trials" / "pi.w2-e3-r1").iterdir()) == ["cluster.json", "summary.json"]


def call(images, rate):
    return {"kind": "steps", "images_per_s": rate, "seconds": images / rate}


def test_the_speed_is_that_of_the_median_step():
    """Neither the first call counts, nor profiled steps, nor a burst of other work."""
    calls = [call(512, 300.0), call(512, 900.0), call(64, 500.0), call(64, 450.0), call(512, 600.0), call(512, 910.0), call(300, 905.0)]
    assert timings.typical_rate(calls) == 900.0
    assert timings.typical_rate([call(64, 300.0), call(64, 100.0), call(64, 120.0)]) == 100.0
    assert timings.typical_rate(calls[:1]) is None
    assert timings.typical_rate([]) is None


def test_strong_scaling_and_saved_states_are_overrides(bench):
    bench.outcomes = [GOOD]
    bench.measure(planned(Trial("strong", 50, 3, 2, 1)), NODES, never)
    assert bench.played[0][1]["set"] == (
        "train.global_batch=192,checkpoint.every_steps=50,reduction.name=packed,recovery.max_restarts=0,recovery.elastic=false,"
        "train.patience=null"
    )


def test_failed_trial_has_no_times_and_leaves_nothing(bench):
    bench.outcomes = [{**GOOD, "state": "FAILED"}]
    row = bench.measure(planned(TRIAL), NODES, never)
    assert (row.state, row.seconds_end_to_end, row.images_per_s) == ("FAILED", None, None)
    assert [path for path, _ in bench.played] == ["playbooks/stages/trial.yml", "playbooks/stages/remove_trial.yml"]
    assert bench.played[1][1] == {"worker_port": "23456", "run": "pi.w2-e3-r1", "sweep": "pi", "workers": "node1,node2"}
    assert bench.last_lines("pi.w2-e3-r1") == ["playbooks/stages/trial.yml says", "playbooks/stages/remove_trial.yml says"]


def test_a_second_try_begins_anew(bench):
    """Files of the first try would make the second one a continuation."""
    bench.outcomes = [{**GOOD, "state": "FAILED"}, GOOD]
    bench.measure(planned(TRIAL), NODES, never)
    assert bench.measure(planned(TRIAL), NODES, never).measured


def test_interrupted_trial_is_taken_away_by_next_command(bench):
    bench.outcomes = [Interrupted()]
    with pytest.raises(Interrupted):
        bench.measure(planned(TRIAL), NODES, never)
    assert marks(bench) == {"pi.w2-e3-r1": {"workers": "node1,node2"}}
    weights = bench.local("pi.w2-e3-r1") / "checkpoints"
    weights.mkdir(parents=True)
    bench.clear_leftover()
    assert not weights.exists()
    assert bench.played[-1][0] == "playbooks/stages/remove_trial.yml"
    assert marks(bench) == {}
    bench.clear_leftover()
    assert len(bench.played) == 2


def test_what_could_not_be_taken_away_is_remembered(bench):
    bench.outcomes, bench.removal = [{**GOOD, "state": "FAILED"}], 4
    bench.measure(planned(TRIAL), NODES, never)
    bench.outcomes = [{**GOOD, "state": "FAILED"}]
    bench.measure(planned(Trial("weak", 0, 3, 3, 1)), NODES, never)
    assert marks(bench) == {"pi.w2-e3-r1": {"workers": "node1,node2"}, "pi.w3-e3-r1": {"workers": "node1,node2,node3"}}
    bench.removal = 0
    bench.clear_leftover()
    assert marks(bench) == {}


def test_the_warm_up_counts_for_nothing(bench, line):
    bench.outcomes = [GOOD]
    bench.prepare(line)
    assert bench.played[0][1]["run"] == "pi.warm-up"
    assert bench.played[0][1]["workers"] == "node1,node2,node3"
    assert list((bench.folder / "trials").iterdir()) == []


def test_first_warm_up_decides_the_method_for_all(bench, line):
    """The first warm up decides for all trials how gradients are sent."""
    write_json(bench.folder / "summary.json", {"name": "pi"})
    for chosen in ("powersgd", "packed"):
        bench.outcomes = [{**GOOD, "reduction": {"name": chosen, "why": "measured", "sent_bytes": 126}}, GOOD]
        bench.prepare(line)
        bench.measure(planned(TRIAL), NODES, never)
        assert ",reduction.name=powersgd," in bench.played[-1][1]["set"]
    assert json.loads((bench.folder / "summary.json").read_text()) == {"name": "pi", "reduction": "powersgd", "sent_bytes": 126}


def test_a_warm_up_that_fails_ends_the_sweep(bench, line):
    bench.outcomes = [{**GOOD, "state": "FAILED"}]
    with pytest.raises(LockstepError, match=r"^the warm-up failed, and nothing was measured:\n  playbooks/stages/trial\.yml says"):
        bench.prepare(line)


def hold(lock, held, done):
    with alone(lock):
        held.set()
        done.wait(60)


def test_one_command_at_a_time_measures(tmp_path):
    lock, method = tmp_path / "sweep.lock", multiprocessing.get_context("fork")
    held, done = method.Event(), method.Event()
    process = method.Process(target=hold, args=(lock, held, done))
    process.start()
    message = r"^another sweep or benchmark is measuring, and two at once would measure each other; wait for it, or end it$"
    try:
        assert held.wait(60)
        with pytest.raises(LockstepError, match=message), alone(lock):
            pytest.fail("both measure")
    finally:
        done.set()
        process.join()
    with alone(lock):
        pass


@pytest.mark.parametrize(("samples", "written"), [([(99.0, 10.0), (110.0, 10.0), (140.0, 10.0)] * 5, True), ([(110.0, 10.0)], False)])
def test_energy_is_written_beside_trial_where_meter_answered(bench, monkeypatch, samples, written):
    @contextlib.contextmanager
    def metering(url):
        assert url == "http://plug"
        yield sorted(samples)

    monkeypatch.setattr(timing_trials, "metering", metering)
    monkeypatch.setattr(TimingBench, "launch", lambda self, run, *_: launched(self, run))

    def launched(self, run):
        write_json(self.local(run) / "cluster.json", {"launched_at": 100.0, "hosts": [{"name": "node1"}]})
        return Summary.of(GOOD)

    bench.meter = "http://plug"
    assert bench.measure(planned(TRIAL), NODES, never).measured
    path = bench.folder / "trials" / "pi.w2-e3-r1" / "energy.json"
    assert path.is_file() is written
    assert not written or json.loads(path.read_text())["joules"] == 415.0
