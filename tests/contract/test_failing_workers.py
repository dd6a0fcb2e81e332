"""What a command says and does when a worker is killed, frozen or never joins.

That a real worker notices the end of another inside TensorFlow: tests/training/test_reduction.py.
"""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from tests.contract.held import begin, finish
from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE, await_until

ONCE = ("config=task_cnn", "set=train.global_batch=20,train.steps_per_call=2,reduction.name=packed,recovery.max_restarts=0")
"""Nothing starts again by itself."""


def exits(project: LocalProject, name: str) -> list[int]:
    """Exit codes of both workers, as collected."""
    return [json.loads((project.run(name) / f"workers/worker{worker}/exit.json").read_text())["exit_code"] for worker in (1, 2)]


def stale_claim(project: LocalProject) -> None:
    """Claim the first worker's port for a run whose session is gone."""
    lock = project.root / f".lockstep/worker1/locks/{project.ports[0]}.json"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.write_text(json.dumps({"run": "ghost", "session": "ghost-w0", "at": time.time() - 3600}))


def test_killed_worker_is_named_and_the_run_continues(project, pictures):
    """The other worker ends; the same command continues, over the stale claim of a run that is gone, too."""
    playbook = begin(project, pictures, "killed", 6, how=ONCE)
    os.kill(project.trainer_pid(2, "killed"), signal.SIGKILL)
    code, output = finish(playbook)
    assert code != 0
    assert exits(project, "killed") == [75, 137]
    killed = r"First failure: worker2 \(rank 1\), exit code 137 \(killed by SIGKILL while training, after step 6"
    assert re.search(killed, output), output
    assert "worker1 (rank 0): exit code 75" in output
    assert "ansible-playbook train.yml -e run=killed" in output
    summary = project.summary("killed")
    assert (summary["state"], summary["failure"]["host"]) == ("FAILED", "worker2")
    assert not project.sessions("killed")
    project.release("killed")
    stale_claim(project)
    done = project.play("train", "run=killed", "set=train.steps=12")
    assert "killed: SUCCEEDED" in done.stdout
    assert project.summary("killed")["steps"] == 12
    assert not list(project.root.glob(".lockstep/worker*/locks/*.json"))


def test_frozen_worker_ends_the_run(project, pictures):
    playbook = begin(project, pictures, "frozen", 6, "worker_silence=20", how=ONCE)
    pid = project.trainer_pid(2, "frozen")
    os.kill(pid, signal.SIGSTOP)
    code, output = finish(playbook)
    assert code != 0
    assert "First failure: worker2 (rank 1), silent" in output
    assert "no heartbeat for" in output
    assert project.summary("frozen")["state"] == "FAILED"
    assert not project.sessions("frozen")
    await_until(lambda: not os.path.exists(f"/proc/{pid}"), 10, "the frozen process to be ended")


ABSENT = """#!/bin/sh
case " $* " in *" train "*) kill -STOP $$;; esac
exec {python} "$@"
"""


@pytest.fixture
def absent(project) -> Iterator[None]:
    """The second worker's process stops before it starts."""
    python, variables = project.root / "absent-python", project.root / "inventory/local/host_vars/worker2.yml"
    python.write_text(ABSENT.format(python=sys.executable))
    python.chmod(0o755)
    variables.parent.mkdir()
    variables.write_text(f"worker_python: {python}\n")
    yield
    variables.unlink()
    variables.parent.rmdir()


@EXHAUSTIVE
def test_worker_that_never_joins_ends_the_run(project, pictures, absent):
    done = project.play("train", "run=late", f"dataset={pictures}", *ONCE, "worker_start_deadline=8", check=False)
    assert done.returncode != 0
    assert "First failure: worker2 (rank 1), silent\n  still starting after " in done.stdout
    assert "worker1 (rank 0): exit code 1\n" in done.stdout
    assert project.summary("late")["state"] == "FAILED"
    assert not project.sessions("late")


@EXHAUSTIVE
def test_worker_that_waits_alone_is_ended(project, pictures):
    """Before the same command starts both again."""
    project.hold("widowed", 6)
    project.play("train", "run=widowed", f"dataset={pictures}", *ONCE, "detach=true")
    waits, ends = project.trainer_pid(1, "widowed"), project.trainer_pid(2, "widowed")
    os.kill(waits, signal.SIGSTOP)
    os.kill(ends, signal.SIGKILL)
    await_until((project.node(2, "widowed") / "workers" / "worker2" / "exit.json").is_file, 20, "the end of worker2")
    looked = project.play("train", "run=widowed", "detach=true", "--check")
    assert "worker2 ended before the others: would end worker1 of the earlier launch; only then hosts can be looked at" in looked.stdout
    assert os.path.exists(f"/proc/{waits}")
    done = project.play("train", "run=widowed", "detach=true")
    assert "worker2 ended before the others: ending worker1 of the earlier launch" in done.stdout
    assert not os.path.exists(f"/proc/{waits}")
    assert "widowed: RUNNING" in project.play("status", "run=widowed").stdout
    project.play("stop", "run=widowed")


@EXHAUSTIVE
def test_worker_that_crashes_twice_is_not_continued_unchanged(project, pictures):
    """It dies by SIGSEGV, as oneDNN does with some layers; status keeps the failure, and the command that is offered works."""
    project.order("crashing", {"exit": [1, -1, 128 + signal.SIGSEGV]})
    option = "set=train.environment.TF_ENABLE_ONEDNN_OPTS=0"
    for again, given in ((False, (f"dataset={pictures}", *ONCE, "epochs=1")), (True, ())):
        done = project.play("train", "run=crashing", *given, check=False)
        assert done.returncode != 0
        assert "First failure: worker2 (rank 1), exit code 139 (killed by SIGSEGV while tracing)" in done.stdout
        assert f"Fix: train without it: -e {option}, or worker_environment: {{TF_ENABLE_ONEDNN_OPTS: 0}} in the inventory" in done.stdout
        assert ("The previous launch ended the same way" in done.stdout) == again
        assert ("continue where it stopped" in done.stdout) == (not again)
        assert f"continue without oneDNN  ansible-playbook train.yml -e run=crashing -e {option}" in re.sub(" {3,}", "  ", done.stdout)
        project.play("status", "run=crashing")
        failure = project.summary("crashing")["failure"]
        assert (failure["phase"], failure["step"], failure["exit_code"], failure["again"]) == ("tracing", 0, 139, again)
    project.release("crashing")
    assert "crashing: SUCCEEDED" in project.play("train", "run=crashing", option).stdout
    assert "export TF_ENABLE_ONEDNN_OPTS=0\n" in (project.node(2, "crashing") / "workers" / "worker2" / "run_worker.sh").read_text()
    assert "failure" not in project.summary("crashing")
