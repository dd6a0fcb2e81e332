"""What is collected of an elastic run, and from whom, when its workers have ended."""

import pytest

from control.common import project
from control.runs.results.generations import Generations
from plugins.action import collect_elastic
from plugins.action.collect_elastic import ActionModule
from tests.unit.control.remote.test_remote import history

HOSTS = ["pi0", "pi1", "pi2"]


@pytest.fixture
def collect(tmp_path, monkeypatch):
    """Collect from a host of a run whose last chief was pi1; what was fetched."""
    run = tmp_path / "runs" / "one"
    (run / "checkpoints").mkdir(parents=True)
    (run / "logs" / "train").mkdir(parents=True)
    (run / "history.csv").write_text(history(1, 2, 3))
    (run / "config.yml").write_text("checkpoint: {snapshots: all}\nrecovery: {elastic: true, max_restarts: 5}\n")
    (run / "checkpoints" / "epoch-0003.keras").touch()
    (run / "logs" / "train" / "events.out.tfevents.1").touch()
    monkeypatch.setattr(project, "PRIVATE", tmp_path)
    monkeypatch.setattr(project, "RUNS", tmp_path / "runs")
    for host in HOSTS[1:]:
        Generations.of_run("one").note(host, {"number": 2, "hosts": HOSTS[1:]})
    names = {
        "checkpoints": [f"checkpoints/epoch-{epoch:04d}.keras" for epoch in (1, 3, 4, 999_999_999)],
        "logs": ["logs/train/events.out.tfevents.1", "logs/train/events.out.tfevents.2"],
    }
    taken = []

    class Remote:
        def __init__(self, *_):
            pass

        def collect(self, into, only=None, wanted=None):
            taken.extend([name for name in names[only] if wanted(name)] if only else ["all"])
            return taken

    monkeypatch.setattr(collect_elastic, "Worker", Remote)

    def act(host, former):
        taken.clear()
        ActionModule.__new__(ActionModule).act("one", host, HOSTS, 3, "s", "there", "there/workers", str(run), former)
        return list(taken)

    act.run = run
    return act


def test_the_last_chiefs_directory_comes_first_and_whole(collect):
    assert {host: collect(host, False) for host in HOSTS} == {"pi0": [], "pi1": ["all"], "pi2": []}


def test_only_missing_history_of_others_is_taken(collect):
    """Of others only what is missing and in the last chiefs history.

    A host that was the chief before can neither replace a file nor add an epoch.
    """
    assert collect("pi1", True) == []
    assert collect("pi0", True) == ["checkpoints/epoch-0001.keras", "logs/train/events.out.tfevents.2"]


def test_of_other_runs_nothing_more_is_collected(collect):
    (collect.run / "config.yml").write_text("recovery: {elastic: false, max_restarts: 5}\n")
    assert collect("pi1", False) == collect("pi0", True) == []
