"""A run goes on by itself after a fault, and ends with the weights of an undisturbed one."""

import os
import re
import signal
from pathlib import Path

import pytest

from control.runs.cluster import session_name
from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE, ROOT, SLOWEST, await_until
from tests.unit.conftest import load_file
from trainer import claims
from trainer.records import read_history
from trainer.supervision.supervisor import DOWN, FILE, MADE_ROOM, REJOINING
from trainer.telemetry import read_records

SETTINGS = "seed=3,train.global_batch=20,train.steps_per_call=2,train.steps=160,train.steps_per_epoch=40"
CONFIG = "config=task_cnn"


@pytest.fixture(scope="module")
def undisturbed(scratch: LocalProject, pictures) -> str:
    """The weights' digest of a run that nothing disturbs, and that nobody supervises."""
    scratch.play("train", "run=undisturbed", f"dataset={pictures}", CONFIG, f"set={SETTINGS}")
    return scratch.summary("undisturbed")["weights_sha256"]


def disturbed(project: LocalProject, pictures, run: str, disturb, silence: int = 45) -> str:
    """What `train.yml` prints of a run that is disturbed in its second epoch."""
    more = f"set={SETTINGS},recovery.max_restarts=5", f"worker_silence={silence}"
    playbook = project.start("train", f"run={run}", f"dataset={pictures}", CONFIG, *more)
    await_steps(project, playbook, run, 44)
    disturb(playbook)
    output, _ = playbook.communicate(timeout=240 * SLOWEST)
    assert playbook.returncode == 0, output
    return output


def await_steps(project: LocalProject, playbook, run: str, steps: int) -> None:
    await_until(lambda: project.steps(1, run) > steps or playbook.poll() is not None, 120, f"{steps} steps")
    assert playbook.poll() is None, playbook.communicate()[0]


def await_state(project: LocalProject, run: str, workers, step: int) -> None:
    """Until a state is on the workers' disks: it is written beside the steps after it."""
    paths = [project.node(worker, run) / "state" / f"step-{step:09d}.npz" for worker in workers]
    await_until(lambda: all(path.exists() for path in paths), 60, f"the state of step {step}")


def test_killed_workers_start_again_with_all_others(project, pictures, undisturbed):
    """First a worker, then the chief."""
    run = "killed"

    def disturb(playbook):
        await_state(project, run, (1, 2), 40)
        killed = project.trainer_pid(2, run)
        os.kill(killed, signal.SIGKILL)
        await_until(lambda: project.has_another(2, run, killed), 60, "the next worker")
        await_steps(project, playbook, run, 84)
        await_state(project, run, (1, 2), 80)
        os.kill(project.trainer_pid(1, run), signal.SIGKILL)

    output = disturbed(project, pictures, run, disturb)
    for number, rank in ((1, 1), (2, 0)):
        message = (
            rf"rank {rank} \(worker{rank + 1}\) was killed by SIGKILL .*; all workers start again .* \(restart {number} of this launch\)"
        )
        assert re.search(message, output), output
    summary = project.summary(run)
    assert (summary["state"], summary["restarts"], summary["exact"]) == ("SUCCEEDED", 2, True)
    assert summary["weights_sha256"] == undisturbed


OWN = """
import os, time
import keras
import numpy as np

class Paced(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.05)
        while os.path.exists({hold!r}):
            time.sleep(0.05)

def paced():
    return [Paced()]

def build():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model

def data(split):
    x = np.random.default_rng(len(split)).normal(size=(640, 4))
    return None if split == "validation" else (x, x.sum(axis=1))
"""


@EXHAUSTIVE
def test_the_next_workers_stand_by(project, tmp_path):
    """They have imported TensorFlow before they are needed; the weights are those of a run without a fault."""
    run, hold, own = "stand-by", tmp_path / "hold", tmp_path / "own.py"
    own.write_text(OWN.format(hold=str(hold)))
    given = [f"{name}={own}:{function}" for name, function in (("model", "build"), ("dataset", "data"), ("callbacks", "paced"))]
    paced = "train.batch_size=8,train.steps_per_call=1,checkpoint.every_steps=10"
    given += ["epochs=4", f"set={paced},recovery.max_restarts=5,recovery.standby=true"]
    project.play("train", "run=without-fault", *given)
    playbook = project.start("train", f"run={run}", *given)

    def is_ready():
        """Whether a process that has nothing more to do stands by: only its main thread is left."""
        pids = project.pids(1, run)
        others = [pid for pid in _children(pids["supervisor"]) if pid != pids.get("worker")]
        return any("_pywrap_tensorflow" in _maps(pid) and len(os.listdir(f"/proc/{pid}/task")) == 1 for pid in others)

    try:
        for steps in (30, 80):
            await_steps(project, playbook, run, steps)
            hold.touch()
            await_until(lambda: is_ready() or playbook.poll() is not None, 120, "the import")
            first = project.pids(1, run)["worker"]
            os.kill(first, signal.SIGKILL)
            await_until(lambda before=first: project.has_another(1, run, before), 60, "the next worker")
            assert "trainer.standby" in Path(f"/proc/{project.pids(1, run)['worker']}/cmdline").read_text()
            hold.unlink()
        output, _ = playbook.communicate(timeout=240 * SLOWEST)
    finally:
        hold.unlink(missing_ok=True)
    assert playbook.returncode == 0, output
    assert project.summary(run)["restarts"] == 2
    assert project.summary(run)["weights_sha256"] == project.summary("without-fault")["weights_sha256"]


def _maps(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_frozen_worker_and_a_killed_supervisor(project, pictures, undisturbed):
    """The second fault strikes while the workers start again after the first, or train."""
    run = "twice"

    def disturb(playbook):
        frozen = project.trainer_pid(2, run)
        os.kill(frozen, signal.SIGSTOP)
        log = project.node(1, run) / "workers" / "worker1" / "worker.log"
        await_until(lambda: "restart 1 of this launch" in log.read_text(), 120, "the first restart")
        await_until(lambda: project.has_another(2, run, frozen), 60, "the next worker")
        os.kill(project.pids(2, run)["supervisor"], signal.SIGKILL)

    output = disturbed(project, pictures, run, disturb, silence=15)
    assert "gave no sign of life for" in output
    assert re.search(r"rank 1 \(worker2\) was lost with its supervisor.*\(restart \d of this launch\)", output), output
    assert project.summary(run)["weights_sha256"] == undisturbed
    assert not list((project.node(1, run) / "workers").glob("*/supervisor.json"))


@pytest.mark.parametrize(("workers", "lost", "chief"), [(3, 1, 2), pytest.param(2, 2, 1, marks=EXHAUSTIVE)])
def test_the_others_go_on_without_a_host_that_is_lost(workers, lost, chief, project, pictures):
    """Its session, supervisor and worker are killed for good; steps, history and result are whole, without the first chief, too."""
    run = f"lost{lost}"
    more = f"set={SETTINGS},recovery.max_restarts=5,recovery.elastic=true,recovery.elastic_wait=5", f"workers={workers}"
    playbook = project.start("train", f"run={run}", f"dataset={pictures}", CONFIG, *more)
    await_steps(project, playbook, run, 44)
    await_state(project, run, range(1, workers + 1), 40)
    _lose(project, lost, run)
    output, _ = playbook.communicate(timeout=300 * SLOWEST)
    assert playbook.returncode == 0, output
    assert f"rank {lost - 1} (worker{lost}) did not come back; {workers - 1} of {workers} workers start again" in output
    records = read_records(project.node(chief, run) / "workers" / f"worker{chief}" / "metrics.jsonl")
    again = next(index for index, record in enumerate(records) if record["kind"] == "generation" and record["number"] == 2)
    assert min(record["step"] for record in records[again:] if record["kind"] == "steps") > 40, "it continues from a state"
    summary = project.summary(run)
    assert (summary["state"], summary["workers"], summary["steps"], summary["epochs_done"]) == ("SUCCEEDED", workers - 1, 160, 4)
    assert [one["host"] for one in summary["lost"]] == [f"worker{lost}"]
    assert len(set(summary["weights_sha256_by_rank"])) == 1
    assert len(summary["weights_sha256_by_rank"]) == workers - 1
    rows = read_history(project.root / "runs" / run / "history.csv")
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]


@EXHAUSTIVE
def test_a_worker_whose_host_restarts_goes_on(project, pictures, undisturbed):
    """A host that goes down sends SIGTERM to all; at its boot the session is started by what provisioning puts there."""
    run, resume = "rebooted", load_file(ROOT / "roles" / "recovery" / "files" / "resume.py", "resume")
    root = project.root / ".lockstep" / "worker2"
    folder = root / "runs" / run / "workers" / "worker2"

    def disturb(playbook):
        worker, supervisor = project.trainer_pid(2, run), project.pids(2, run)["supervisor"]
        for pid in (_parent(supervisor), supervisor, worker):
            os.kill(pid, signal.SIGTERM)
        # The session goes with its shell, before the worker has saved its state.
        await_until(lambda: not Path(f"/proc/{supervisor}").exists(), 60, "the end")
        assert DOWN in (folder / "metrics.jsonl").read_text()
        words = resume.command(str(root), str(folder))
        assert (folder / FILE).exists()
        assert not (folder / "exit.json").exists()
        assert resume.start(words) == f"session {words[words.index('-s') + 1]} is started"

    output = disturbed(project, pictures, run, disturb)
    assert re.search(r"rank 1 \(worker2\) was lost with its supervisor, or its host restarted;.*\(restart 1 of this launch\)", output), (
        output
    )
    assert project.summary(run)["weights_sha256"] == undisturbed
    assert not (folder / FILE).exists()


@EXHAUSTIVE
def test_the_command_may_go_away_while_the_others_go_on_without_a_host(project, pictures):
    """`train.yml` comes back to what goes on, and touches nothing; `status.yml` names the lost host."""
    run = "back"
    _lose_the_first_unwatched(project, pictures, run, 600)
    log = project.node(2, run) / "workers" / "worker2" / "worker.log"
    await_until(lambda: "2 of 3 workers start again" in log.read_text(), 90, "the others")
    came_back = project.start("train", f"run={run}")
    status = project.play("status", f"run={run}").stdout
    assert re.search(r"0 +worker1 .*lost: the others go on without it", status), status
    output, _ = came_back.communicate(timeout=400 * SLOWEST)
    assert came_back.returncode == 0, output
    assert f"{run} goes on without worker1" in output
    summary = project.summary(run)
    assert (summary["state"], summary["workers"], summary["steps"], summary["restarts"]) == ("SUCCEEDED", 2, 600, 1)
    assert [one["host"] for one in summary["lost"]] == ["worker1"]
    assert [row["epoch"] for row in read_history(project.root / "runs" / run / "history.csv")] == [*range(1, 16)]
    project.play("evaluate", f"run={run}")
    assert [(project.node(worker, run) / "evaluate").exists() for worker in (1, 2)] == [False, True], "on a host that was not lost"


@EXHAUSTIVE
def test_the_command_that_comes_back_while_a_host_restarts_ends_nothing(project, pictures, undisturbed):
    """The others wait for it, and so does the command."""
    run = "returning"
    more = f"set={SETTINGS},recovery.max_restarts=5", "worker_silence=15"
    project.play("train", f"run={run}", f"dataset={pictures}", CONFIG, *more, "detach=true")
    await_until(lambda: project.steps(1, run) > 44, 120, "44 steps")
    _lose(project, 2, run)
    records = project.node(1, run) / "workers" / "worker1" / "metrics.jsonl"
    await_until(lambda: REJOINING in records.read_text(), 60, "the other to wait")
    again = project.start("train", f"run={run}")
    # The host is back only after the command has looked.
    assert any("the others wait for worker2" in line for line in again.stdout)
    _bring_back(project, 2, run)
    output, _ = again.communicate(timeout=240 * SLOWEST)
    assert again.returncode == 0, output
    summary = project.summary(run)
    assert (summary["state"], summary["restarts"], summary["weights_sha256"]) == ("SUCCEEDED", 1, undisturbed)


@EXHAUSTIVE
def test_what_another_chief_wrote_while_nobody_watched_is_collected(project, pictures):
    """The first host is lost for some epochs, and back before the end; then `train.yml` comes back."""
    run = "interim"
    _lose_the_first_unwatched(project, pictures, run, 400)
    await_until(lambda: project.steps(2, run) > 130, 120, "the third epoch's end")
    _bring_back(project, 1, run)
    await_until((project.node(1, run) / "workers" / "worker1" / "exit.json").exists, 240, "the end")
    there = {path.name for path in (project.node(1, run) / "checkpoints").glob("*.keras")}
    assert "epoch-0003.keras" not in there, "another was the chief"
    project.play("train", f"run={run}")
    here = sorted(path.name for path in (project.root / "runs" / run / "checkpoints").iterdir())
    assert here == [f"epoch-{epoch:04d}.keras" for epoch in range(1, 11)]
    assert project.summary(run)["state"] == "SUCCEEDED"


@EXHAUSTIVE
def test_a_lost_host_that_is_back_joins_the_others_again(project, pictures):
    run = "joined"
    settings = SETTINGS.replace("steps=160", "steps=400")
    more = f"set={settings},recovery.max_restarts=5,recovery.elastic=true,recovery.elastic_wait=3", "workers=3"
    playbook = project.start("train", f"run={run}", f"dataset={pictures}", CONFIG, *more)
    await_steps(project, playbook, run, 44)
    _lose(project, 3, run)
    log = project.node(1, run) / "workers" / "worker1" / "worker.log"
    await_until(lambda: "2 of 3 workers start again" in log.read_text(), 90, "the others")
    _bring_back(project, 3, run)
    output, _ = playbook.communicate(timeout=400 * SLOWEST)
    assert playbook.returncode == 0, output
    assert re.search(rf"{MADE_ROOM}, at step \d+; all workers start again .* \(restart 2 of this launch\)", output), output
    summary = project.summary(run)
    assert (summary["state"], summary["workers"], summary["steps"]) == ("SUCCEEDED", 3, 400)
    # A generation that ends at its first step, as a host waits to join it, writes no state that counts it.
    assert summary["restarts"] in (1, 2)
    assert "lost" not in summary
    assert [row["epoch"] for row in read_history(project.root / "runs" / run / "history.csv")] == [*range(1, 11)]


def test_a_spare_takes_the_place_of_a_lost_host(project, pictures):
    run, groups = "replaced", project.root / "inventory" / "local" / "spares.yml"
    groups.write_text("spares:\n  hosts:\n    worker3:\n")
    try:
        settings = SETTINGS.replace("steps=160", "steps=600")
        more = f"set={settings},recovery.max_restarts=5,recovery.elastic=true,recovery.elastic_wait=10", "workers=2"
        playbook = project.start("train", f"run={run}", f"dataset={pictures}", CONFIG, *more)
        await_steps(project, playbook, run, 44)
        status = project.play("status", f"run={run}").stdout
        assert re.search(r"2 +worker3 +running +standing by .*spare: takes the place of a lost host", status), status
        _lose(project, 2, run)
        output, _ = playbook.communicate(timeout=400 * SLOWEST)
    finally:
        groups.unlink()
    assert playbook.returncode == 0, output
    assert "with at least 1 of 2 workers (worker1 among them); worker3 can take the place of one" in output
    assert "rank 1 (worker2) did not come back; rank 2 (worker3) takes the place of a lost host; all workers start again" in output
    assert re.search(r"spares +worker3 took the place of a lost host", output), output
    summary = project.summary(run)
    assert (summary["state"], summary["workers"], summary["steps"], summary["restarts"]) == ("SUCCEEDED", 2, 600, 1)
    assert ([one["host"] for one in summary["lost"]], summary["took_places"]) == (["worker2"], ["worker3"])
    assert len({*summary["weights_sha256_by_rank"]}) == 1


def _lose_the_first_unwatched(project: LocalProject, pictures: Path, run: str, steps: int) -> None:
    """Start an elastic run of three workers that no command watches, and kill the first for good in the second epoch."""
    settings = SETTINGS.replace("steps=160", f"steps={steps}")
    more = f"set={settings},recovery.max_restarts=5,recovery.elastic=true,recovery.elastic_wait=3", "workers=3"
    project.play("train", f"run={run}", f"dataset={pictures}", CONFIG, *more, "detach=true")
    await_until(lambda: project.steps(1, run) > 44, 120, "44 steps")
    _lose(project, 1, run)


def _lose(project: LocalProject, worker: int, run: str) -> None:
    """Kill a worker's session for good: shell and supervisor, which takes its worker along."""
    supervisor = project.pids(worker, run)["supervisor"]
    for pid in (_parent(supervisor), supervisor):
        os.kill(pid, signal.SIGKILL)


def _bring_back(project: LocalProject, worker: int, run: str) -> None:
    """Start a lost worker's session, as its host does at boot."""
    session = session_name(run, worker - 1, str(project.root / ".lockstep" / f"worker{worker}"))
    folder = project.node(worker, run) / "workers" / f"worker{worker}"
    assert not claims.start_session(claims.session_command(session, str(folder)))


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="ascii") as stream:
        return int(stream.read().rpartition(")")[2].split()[1])
