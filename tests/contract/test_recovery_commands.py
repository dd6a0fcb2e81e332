"""What commands show and do while a run goes on by itself after a fault; that its weights are exact: `test_recovery`.

The process that forks the next real worker, and has imported TensorFlow: `tests/training/test_standby.py`.
"""

import os
import re
import signal

from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE, SLOWEST, await_during, await_until
from trainer.host import claims
from trainer.host.claims import session_name
from trainer.rundir.phases import Phase

SETTINGS = "set=seed=3,train.global_batch=20,train.steps_per_call=2,train.steps=40,train.steps_per_epoch=10,recovery.max_restarts=5"
ELASTIC = f"{SETTINGS},recovery.elastic=true,recovery.elastic_wait=1"


def held(project: LocalProject, pictures, run: str, *more: str, command: str = "start"):
    """A training whose workers wait before step 14, in their second epoch, with the state of the first on their disks."""
    project.hold(run, 14)
    playbook = getattr(project, command)("train", f"run={run}", f"dataset={pictures}", "config=task_cnn", *more)
    watched = playbook if command == "start" else None
    await_during(watched, lambda: is_held(project, run, 14), 120, "step 14")
    return playbook


def is_held(project: LocalProject, run: str, step: int) -> bool:
    """Whether its workers wait before a step, and have saved the state of the epoch before."""
    return project.steps(1, run) >= step and (project.node(1, run) / "state" / f"step-{step // 10 * 10:09d}.npz").exists()


def ended(playbook) -> str:
    """What a command prints that ends well."""
    output, _ = playbook.communicate(timeout=120 * SLOWEST)
    assert playbook.returncode == 0, output
    return output


def lose(project: LocalProject, worker: int, run: str) -> None:
    """Kill a worker's session for good: shell and supervisor, which takes its worker along."""
    supervisor = project.pids(worker, run)["supervisor"]
    for pid in (_parent(supervisor), supervisor):
        os.kill(pid, signal.SIGKILL)


def bring_back(project: LocalProject, worker: int, run: str) -> None:
    """Start a lost worker's session, as its host does at boot."""
    session = session_name(run, worker - 1, str(project.root / ".lockstep" / f"worker{worker}"))
    folder = project.node(worker, run) / "workers" / f"worker{worker}"
    assert not claims.start_session(claims.session_command(session, str(folder)))


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="ascii") as stream:
        return int(stream.read().rpartition(")")[2].split()[1])


def test_restarts_and_spares_are_shown(project, pictures):
    """A worker is killed, then its host is lost: the plan, the status, the output and the result say what happens."""
    run, groups = "replaced", project.root / "inventory" / "local" / "spares.yml"
    groups.write_text("spares:\n  hosts:\n    worker3:\n")
    try:
        playbook = held(project, pictures, run, ELASTIC, "workers=2")
        await_until(lambda: "standing by" in (project.node(3, run) / "workers/worker3/metrics.jsonl").read_text(), 60, "the spare")
        status = project.play("status", f"run={run}").stdout
        assert re.search(r"2 +worker3 +running +standing by .*spare: takes the place of a lost host", status), status
        os.kill(project.trainer_pid(2, run), signal.SIGKILL)
        project.hold(run, 24)
        await_until(lambda: is_held(project, run, 24), 60, "the next workers")
        lose(project, 2, run)
        await_until(lambda: "takes the place of a lost host" in project.log(1, run), 120, "the spare to take a place")
        project.release(run)
        output = ended(playbook)
    finally:
        groups.unlink()
    assert "with at least 1 of 2 workers (worker1 among them); worker3 can take the place of one" in output
    message = r"rank 1 \(worker2\) was killed by SIGKILL .*; all workers start again .* \(restart 1 of this launch\)"
    assert re.search(message, output), output
    assert "rank 1 (worker2) did not come back; rank 2 (worker3) takes the place of a lost host; all workers start again" in output
    assert re.search(r"spares +worker3 took the place of a lost host", output), output
    summary = project.summary(run)
    assert (summary["state"], summary["workers"], summary["steps"], summary["restarts"]) == ("SUCCEEDED", 2, 40, 2)
    assert summary["exact"] is True
    assert ([one["host"] for one in summary["lost"]], summary["took_places"]) == (["worker2"], ["worker3"])


@EXHAUSTIVE
def test_train_returns_to_a_run_without_a_host(project, pictures):
    """It touches nothing, and collects what the next chief wrote; `status.yml` names the lost host."""
    run = "back"
    held(project, pictures, run, ELASTIC, "workers=3", "detach=true", command="play")
    lose(project, 1, run)
    await_until(lambda: "2 of 3 workers start again" in project.log(2, run), 90, "the others")
    came_back = project.start("train", f"run={run}")
    status = project.play("status", f"run={run}").stdout
    assert re.search(r"0 +worker1 .*lost: the others go on without it", status), status
    assert any(f"{run} goes on without worker1" in line for line in came_back.stdout)
    project.release(run)
    ended(came_back)
    summary = project.summary(run)
    assert (summary["state"], summary["workers"], summary["steps"], summary["restarts"]) == ("SUCCEEDED", 2, 40, 1)
    assert [one["host"] for one in summary["lost"]] == ["worker1"]
    assert [row["epoch"] for row in project.history(run)] == [1, 2, 3, 4]
    assert len(list((project.run(run) / "checkpoints").iterdir())) == 4


@EXHAUSTIVE
def test_train_waits_for_a_host_that_restarts(project, pictures):
    """The others wait for it, and so does the command, which ends nothing."""
    run = "returning"
    held(project, pictures, run, SETTINGS, "detach=true", command="play")
    lose(project, 2, run)
    records = project.node(1, run) / "workers" / "worker1" / "metrics.jsonl"
    await_until(lambda: Phase.REJOINING in records.read_text(), 60, "the other to wait")
    again = project.start("train", f"run={run}", "worker_silence=30")
    # The host is back only after the command has looked.
    assert any("the others wait for worker2" in line for line in again.stdout)
    bring_back(project, 2, run)
    # Before that a run that has ended would be started once more.
    assert any("--- Train" in line for line in again.stdout)
    project.release(run)
    ended(again)
    summary = project.summary(run)
    assert (summary["state"], summary["restarts"]) == ("SUCCEEDED", 1)
