"""Runs that wait for their turn behind a script: listed, cancelled, in order over the death of their command and of what waits."""

import json
import os
import re
import signal
from dataclasses import dataclass
from subprocess import Popen

import pytest

from control.remote.worker_files import read_records
from tests.contract.held import finish
from tests.local_project import LocalProject, command_lines
from tests.project import await_during, await_until
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
    """What is seen of runs that wait behind the script `holder`: a training, `first`, then two scripts, `then` and `unwanted`."""

    waiting: int
    """How many wait for the first worker."""
    checked: str
    """What a command prints that would queue one more, with `--check`."""
    stopped: str
    """What the command prints that ends `holder`, after the command of `first`, and what waits for its turn, were killed."""
    ends: list[dict[str, float]]
    """Of the workers of `first`."""
    began: float
    """When `then` began."""
    alone: str
    """What is shown of `then`."""
    listed: str
    """What is shown of all."""
    cancelled: str
    """What the command prints that takes `unwanted` out of the queue."""
    tickets: list[list[int]]
    """How many wait for each worker before that, and after."""
    watched: tuple[int, str]
    """Exit code and output of the command that has waited for `then`."""
    collected: list[str]
    """What the command that collects all others prints, and the same command again."""


@pytest.fixture(scope="module")
def queue(project, pictures, tmp_path_factory) -> Queue:
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
    checked = project.play("train", "run=other", "queue=true", "--check", *SMALL, f"dataset={pictures}").stdout
    waiting = tickets(project, 1)

    first.send_signal(signal.SIGKILL)
    first.communicate()
    for worker in (1, 2):
        killed = waiting_pid(project, worker, "first")
        os.kill(killed, signal.SIGKILL)
        await_until(lambda worker=worker, killed=killed: waiting_pid(project, worker, "first") not in (None, killed), 30, "another waits")
    stopped = project.play("stop", "run=holder").stdout
    began = project.node(1, "then") / "output/began"
    await_until(lambda: began.is_file() and began.read_text() != "", 60, "the turn of the script that waits")
    ends = [json.loads((project.node(worker, "first") / f"workers/worker{worker}/exit.json").read_text()) for worker in (1, 2)]

    alone, listed = project.play("status", "run=then").stdout, project.play("status").stdout
    before = [tickets(project, worker) for worker in (1, 2)]
    cancelled = project.play("stop", "run=unwanted").stdout
    after = [tickets(project, worker) for worker in (1, 2)]

    (scripts / "go").touch()
    end = finish(then)
    collected = [project.play("status", "collect=all").stdout for _ in range(2)]
    return Queue(waiting, checked, stopped, ends, float(began.read_text()), alone, listed, cancelled, [before, after], end, collected)


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
    return next((pid for pid, line in command_lines().items() if waits in line), None)


def tickets(project: LocalProject, worker: int) -> int:
    """How many runs wait for a worker."""
    return len(list((project.root / f".lockstep/worker{worker}/queue").glob("*")))


def test_queued_runs_survive_kills_and_keep_order(queue):
    """The first one's command is killed, and what waits for its turn; the script is stopped, and the next two follow each other."""
    assert queue.waiting == 3
    assert "holder: CANCELLED" in queue.stopped
    assert [one["exit_code"] for one in queue.ends] == [0, 0]
    assert queue.ends[0]["ended_at"] < queue.began


def test_queue_is_listed(queue):
    assert "then: RUNNING" in queue.alone
    assert "last output" in queue.alone
    assert "unwanted" not in queue.alone
    found = re.findall(
        r"^  (holder|first|then|unwanted) +(CANCELLED|RUNNING|QUEUED \(\d\)|ended, not collected)", queue.listed, re.MULTILINE
    )
    assert dict(found) == {"holder": "CANCELLED", "first": "ended, not collected", "then": "RUNNING", "unwanted": "QUEUED (1)"}


def test_queued_run_is_cancelled(queue):
    assert "unwanted: CANCELLED" in queue.cancelled
    assert queue.tickets == [[1, 1], [0, 0]]


def test_runs_of_the_queue_are_collected(project, queue):
    """One by the command that has waited for it, and one because all are that nobody has watched."""
    code, output = queue.watched
    assert code == 0, output
    assert "worker1: it runs" in output
    assert "then: SUCCEEDED" in output
    assert "1 run collected: first" in queue.collected[0]
    assert "Nothing to collect" in queue.collected[1]
    summary = project.summary("first")
    assert (summary["state"], summary["steps"], summary["restarts"]) == ("SUCCEEDED", 6, 0)


def test_check_queues_nothing(queue):
    assert "other: would be launched; with --check nothing was started or written" in queue.checked
    assert "changed=0" in queue.checked
    assert queue.waiting == 3
