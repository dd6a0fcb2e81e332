"""What commands say and do when a worker is killed, frozen or never joins, and of two runs at once.

That a real worker notices the end of another inside TensorFlow: tests/training/test_reduction.py.
"""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.contract.held import await_held, finish
from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE, await_until
from trainer.common.files import read_json

ONCE = ("config=task_cnn", "set=train.global_batch=20,train.steps_per_call=2,reduction.name=packed,recovery.max_restarts=0")
"""Nothing starts again by itself."""


@dataclass
class Both:
    """Two runs at once on the default inventory; a worker of one is frozen, one of the other is killed, both after step 6."""

    outputs: dict[str, str]
    ports: dict[str, set[int]]
    frozen: int
    """Process id of the frozen worker."""


@pytest.fixture(scope="module")
def both(project, pictures) -> Both:
    """Their commands have failed."""
    default, playbooks = project.as_cloned(), {}
    for name, silence in (("frozen", 12), ("killed", 300)):
        project.hold(name, 6)
        playbooks[name] = default.start("train", f"run={name}", f"dataset={pictures}", *ONCE, f"worker_silence={silence}")
    for name, playbook in playbooks.items():
        await_held(project, name, 6, playbook)
    ports = {name: project.ports_of(name) for name in playbooks}
    frozen = project.trainer_pid(2, "frozen")
    os.kill(frozen, signal.SIGSTOP)
    os.kill(project.trainer_pid(2, "killed"), signal.SIGKILL)
    ends = {name: finish(playbook) for name, playbook in playbooks.items()}
    for code, output in ends.values():
        assert code != 0, output
    return Both({name: output for name, (_, output) in ends.items()}, ports, frozen)


def stale_claim(project: LocalProject) -> None:
    """Claim the first worker's port for a run whose session is gone."""
    lock = project.root / f".lockstep/worker1/locks/{project.ports[0]}.json"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.write_text(json.dumps({"run": "ghost", "session": "ghost-w0", "at": time.time() - 3600}))


def test_two_runs_at_once_take_four_ports(both):
    used = set.union(*both.ports.values())
    assert len(used) == 4
    assert all(20000 <= port < 30000 for port in used)


def test_frozen_worker_ends_the_run(project, both):
    output = both.outputs["frozen"]
    assert "First failure: worker2 (rank 1), silent" in output
    assert "no heartbeat for" in output
    assert project.summary("frozen")["state"] == "FAILED"
    assert not project.sessions("frozen")
    await_until(lambda: not os.path.exists(f"/proc/{both.frozen}"), 10, "the frozen process to be ended")


def test_killed_worker_is_named_and_the_run_continues(project, both):
    """The other worker ends; the run continues on ports that are given, one of which a run that is gone still claims."""
    output = both.outputs["killed"]
    exits = [read_json(project.run("killed") / f"workers/worker{worker}/exit.json")["exit_code"] for worker in (1, 2)]
    assert exits == [75, 137]
    killed = r"First failure: worker2 \(rank 1\) was killed by SIGKILL at step 6"
    assert re.search(killed, output), output
    assert "worker1 (rank 0) lost another worker at step 6" in output
    assert "ansible-playbook -i inventory/default train.yml -e run=killed" in output
    summary = project.summary("killed")
    assert (summary["state"], summary["failure"]["host"]) == ("FAILED", "worker2")
    assert not project.sessions("killed")
    project.release("killed")
    stale_claim(project)
    done = project.play("train", "run=killed", "set=train.steps=12")
    assert "killed: SUCCEEDED" in done.stdout
    assert project.summary("killed")["steps"] == 12
    assert not list(project.root.glob(".lockstep/worker*/locks/*.json"))


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
        assert "First failure: worker2 (rank 1) was killed by SIGSEGV while tracing" in done.stdout
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
