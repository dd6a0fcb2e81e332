"""Runs that wait for their turn behind a script: listed, cancelled, in order over the death of their command and of what waits.

The tests follow one another: they are the life of one queue.
"""

import json
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

import pytest

from control.remote.worker_files import read_records
from tests.contract.held import finish
from tests.local_project import LocalProject, command_lines
from tests.project import EXHAUSTIVE, await_during, await_until
from trainer.rundir.phases import Phase

SMALL = ("config=task_cnn", "set=train.global_batch=20,train.steps=6,train.steps_per_epoch=3,reduction.name=packed")
HOLDS = "import time\nprint('it waits', flush=True)\nwhile True:\n    time.sleep(0.1)\n"
TELLS = """
import os, pathlib, sys, time
print("it runs", flush=True)
pathlib.Path(os.environ["LOCKSTEP_OUTPUT"], "began").write_text(str(time.time()))
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.1)
"""


@dataclass
class Queue:
    """Runs that wait behind the script `holder`, and the commands that watch the first two."""

    first: Popen[str]
    then: Popen[str]
    go: Path
    """With this file the script `then` ends."""


@pytest.fixture(scope="module")
def queue(project, pictures, tmp_path_factory) -> Queue:
    """A script has both workers; a training, a script and another script wait, in this order."""
    scripts = tmp_path_factory.mktemp("scripts")
    tells = (f"script={scripts}/tells.py", f"args={scripts}/go", "preflight=false")
    for name, text in (("holds.py", HOLDS), ("tells.py", TELLS)):
        (scripts / name).write_text(text)
    output = project.play("train", "run=holder", "queue=true", "preflight=false", f"script={scripts}/holds.py").stdout
    assert re.search("holder is (under way|queued: next)", output), output
    log = project.node(2, "holder") / "workers/worker2/worker.log"
    await_until(lambda: log.is_file() and "it waits" in log.read_text(), 60, "the first script's turn")
    first = watched(project, "first", "run holder", *SMALL, f"dataset={pictures}")
    then = watched(project, "then", "run first, which was queued before", *tells)
    assert "unwanted is queued: behind run " in project.play("train", "run=unwanted", "queue=true", *tells).stdout
    return Queue(first, then, scripts / "go")


def watched(project: LocalProject, run: str, behind: str, *arguments: str) -> Popen[str]:
    """Queue a run and watch it; returns once it waits."""
    playbook = project.start("train", f"run={run}", "queue=true", "detach=false", *arguments)
    await_during(playbook, lambda: reason(project, run) == f"behind {behind}", 60, f"{run} to wait")
    return playbook


def reason(project: LocalProject, run: str) -> str:
    """Why the process that waits for the chief's turn waits; empty if it does not."""
    path = project.node(1, run) / "workers/worker1/metrics.jsonl"
    phases = [record for record in read_records(path) if record["kind"] == "phase"] if path.is_file() else []
    return phases[-1]["note"] if phases and phases[-1]["phase"] == Phase.QUEUED else ""


def waiting_pid(project: LocalProject, worker: int, run: str) -> int | None:
    """Process id of what waits for a worker's turn."""
    waits = f"\0trainer.supervision.queue\0{project.node(worker, run)}\0"
    for pid, line in command_lines().items():
        if waits in line:
            return pid
    return None


def tickets(project: LocalProject, worker: int = 1) -> list[Path]:
    """Files of the runs that wait on a worker."""
    return list((project.root / f".lockstep/worker{worker}/queue").glob("*"))


def end(project: LocalProject, worker: int, run: str) -> dict[str, float]:
    """A worker's exit.json; empty while there is none."""
    path = project.node(worker, run) / f"workers/worker{worker}/exit.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def test_queued_runs_survive_kills_and_keep_order(project, queue):
    """The first one's command is killed, and what waits for its turn; the script is stopped, and the next two follow each other."""
    assert len(tickets(project)) == 3
    queue.first.send_signal(signal.SIGKILL)
    queue.first.communicate()
    for worker in (1, 2):
        killed = waiting_pid(project, worker, "first")
        os.kill(killed, signal.SIGKILL)
        await_until(lambda worker=worker, killed=killed: waiting_pid(project, worker, "first") not in (None, killed), 30, "another waits")
    assert "holder: CANCELLED" in project.play("stop", "run=holder").stdout
    began = project.node(1, "then") / "output/began"
    await_until(lambda: began.is_file() and began.read_text() != "", 60, "the turn of the script that waits")
    ends = [end(project, worker, "first") for worker in (1, 2)]
    assert [one["exit_code"] for one in ends] == [0, 0]
    assert ends[0]["ended_at"] < float(began.read_text())


def test_queue_is_listed(project, queue):
    alone = project.play("status", "run=then").stdout
    assert "then: RUNNING" in alone
    assert "last output" in alone
    assert "unwanted" not in alone
    listed = project.play("status").stdout
    found = re.findall(r"^  (holder|first|then|unwanted) +(CANCELLED|RUNNING|QUEUED \(\d\)|ended, not collected)", listed, re.MULTILINE)
    assert dict(found) == {"holder": "CANCELLED", "first": "ended, not collected", "then": "RUNNING", "unwanted": "QUEUED (1)"}, listed


def test_queued_run_is_cancelled(project, queue):
    assert [len(tickets(project, worker)) for worker in (1, 2)] == [1, 1]
    assert "unwanted: CANCELLED" in project.play("stop", "run=unwanted").stdout
    assert [tickets(project, worker) for worker in (1, 2)] == [[], []]


def test_runs_of_the_queue_are_collected(project, queue):
    """One by the command that has waited for it, and one because all are that nobody has watched."""
    queue.go.touch()
    code, output = finish(queue.then)
    assert code == 0, output
    assert "worker1: it runs" in output
    assert "then: SUCCEEDED" in output
    collected = project.play("status", "collect=all")
    assert "1 run collected: first" in collected.stdout
    assert "Nothing to collect" in project.play("status", "collect=all").stdout
    summary = project.summary("first")
    assert (summary["state"], summary["steps"], summary["restarts"]) == ("SUCCEEDED", 6, 0)


@EXHAUSTIVE
def test_check_queues_nothing(project, pictures):
    checked = project.play("train", "run=other", "queue=true", "--check", *SMALL, f"dataset={pictures}")
    assert "other: would be launched; with --check nothing was started or written" in checked.stdout
    assert "changed=0" in checked.stdout
    assert tickets(project) == []
