"""What a command says and does when a worker is killed, frozen or never joins.

That a real worker notices the end of another inside TensorFlow: tests/training/test_killed.py.
"""

import json
import os
import re
import signal
import time

from tests.contract.held import begin, finish
from tests.local_project import LocalProject
from tests.project import await_until

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


def test_killed_worker_is_the_cause_and_the_run_continues(project, pictures):
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
