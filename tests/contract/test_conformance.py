"""The stub worker keeps the contract of the real one: both tell the same story, in the same files, records, columns and exit codes.

This is the one test of this folder that trains with TensorFlow.
"""

import csv
import json
import re
import signal
import sys
import types
from pathlib import Path

import pytest

from control.remote.worker_files import read_records
from tests import preloaded
from tests.contract.hosts import Hosts
from tests.project import Project, copy_project
from trainer.common.errors import PREEMPTED
from trainer.host.claims import MARK

SETTINGS = {"train.steps": 20, "telemetry.profile_every": 3, "checkpoint.every_steps": 4, "reduction.name": "powersgd"}
SETTINGS |= {"reduction.min_elements": 1000, "recovery.max_restarts": 3, "checkpoint.snapshots": "all"}


def story(hosts: Hosts) -> list[int]:
    """Killed, started again, stopped, continued to the end of an epoch: the exit codes of both launches."""
    hosts.launch(SETTINGS, {"train.steps": 100_000})
    hosts.until(lambda: hosts.steps(2) > 4, "some steps")
    first = hosts.kill(2)
    hosts.until(lambda: hosts.pids(2).get("worker", first) != first, "the next worker")
    hosts.until(lambda: hosts.records(1, "generation")[-1]["number"] == 2, "the next generation")
    again = hosts.records(1, "generation")[-1]["t"]
    hosts.until(lambda: any(one["phase"] == "training" and one["t"] >= again for one in hosts.records(1, "phase")), "training")
    for worker in (1, 2):
        (hosts.own(worker) / MARK).touch()
        hosts.signal(worker, signal.SIGTERM)
    codes = [hosts.ended(worker) for worker in (1, 2)]
    for worker in (1, 2):
        (hosts.own(worker) / MARK).unlink()
    # A whole epoch at least, of which some steps are profiled.
    hosts.launch(SETTINGS, {"train.steps": 10 * (hosts.summary()["steps"] // 10 + 2)})
    return [*codes, *(hosts.ended(worker) for worker in (1, 2))]


@pytest.fixture(scope="module")
def both(tmp_path_factory, scratch, pictures):
    """The hosts and exit codes of the story as the stub and as the real worker tell it."""
    real = tmp_path_factory.mktemp("real")
    copy_project(real)
    told = {}
    for name, code in (("stub", scratch), ("real", Project(real, popen=preloaded.with_tensorflow(real).popen))):
        hosts = Hosts(tmp_path_factory.mktemp(f"{name} hosts"), code, pictures)
        try:
            told[name] = hosts, story(hosts)
        finally:
            hosts.close()
    return told


def _files(hosts: Hosts) -> set[str]:
    """Names of all files of a run, with numbers and times left out."""
    names = (str(path.relative_to(hosts.root)) for worker in (1, 2) for path in hosts.run(worker).rglob("*") if path.is_file())
    return {re.sub(r"events\.out\.tfevents\..*", "events", re.sub(r"\d{4,}", "N", name)) for name in names if "/tmp/" not in name}


def _fields(records: list[dict]) -> dict[str, list[str]]:
    """The fields of each kind of record."""
    return {record["kind"]: sorted(record) for record in records}


def _columns(path: Path) -> list[str]:
    with path.open() as stream:
        return next(csv.reader(stream))


def test_exit_codes(both):
    assert both["stub"][1] == both["real"][1] == [PREEMPTED] * 2 + [0] * 2


def test_files(both):
    assert _files(both["stub"][0]) == _files(both["real"][0])


@pytest.mark.parametrize("worker", [1, 2])
def test_records(both, worker):
    """Each kind with the same fields, and the phases in the same order."""
    stub, real = (read_records(both[name][0].own(worker) / "metrics.jsonl") for name in ("stub", "real"))
    without = {"heartbeat", "straggler"}
    assert {k: v for k, v in _fields(stub).items() if k not in without} == {k: v for k, v in _fields(real).items() if k not in without}
    assert _phases(stub) == _phases(real)


def _phases(records: list[dict]) -> list[str]:
    """The phases of the last launch, each once in a row; from training on they depend on when the test stopped it."""
    names = [record["phase"] for record in records if record["kind"] == "phase"]
    last = len(names) - names[::-1].index("starting") - 1
    phases = [name for name, before in zip(names[last:], ["", *names[last:]], strict=False) if name != before]
    return phases[: phases.index("training") + 1] + phases[-1:]


def test_summary_and_history(both):
    stub, real = both["stub"][0], both["real"][0]
    assert _shape(stub.summary()) == _shape(real.summary())
    assert _columns(stub.run(1) / "history.csv") == _columns(real.run(1) / "history.csv")
    for hosts in (stub, real):
        summary = hosts.summary()
        # Whether it is exact depends on what was being saved when the worker was killed.
        assert (summary["state"], summary["exact"], summary["steps"] % 10) == ("SUCCEEDED", not summary["inexact_because"], 0)
        assert len(set(summary["weights_sha256_by_rank"])) == 1


def _shape(value: object) -> object:
    """A JSON value with its values left out."""
    if isinstance(value, dict):
        return {name: _shape(one) for name, one in value.items()}
    return type(value).__name__


def test_states_and_events(both, monkeypatch):
    """Entries of a state, and tags of TensorBoard's events."""
    # TensorBoard's own switch: it reads files without TensorFlow.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", types.ModuleType("notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    described = []
    for hosts, _ in both.values():
        import numpy as np

        with np.load(hosts.run(1) / "state" / hosts.states(1)[-1]) as stored:
            progress = sorted(json.loads(stored["progress"].tobytes()))
        tags = {}
        for split in ("train", "validation"):
            events = EventAccumulator(str(hosts.run(1) / "logs" / split)).Reload()
            tags[split] = sorted({*events.Tags()["scalars"], *events.Tags()["tensors"]})
        described.append((progress, tags))
    assert described[0] == described[1]


def test_lines_of_the_log(both):
    """The same lines, but for their numbers and the real worker's own."""
    logs = [{re.sub(r"[\d.,]+", "N", line) for line in both[name][0].log(1).splitlines()} for name in ("stub", "real")]
    assert {line for line in logs[0] if line.startswith(("epoch", "===", "SIGTERM"))} == {
        line for line in logs[1] if line.startswith(("epoch", "===", "SIGTERM"))
    }
