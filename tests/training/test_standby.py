"""The next worker stands by with TensorFlow imported, and trains on with the weights of a run without a fault."""

import os
import signal
from pathlib import Path

from tests.local_project import children
from tests.project import EXHAUSTIVE, NO_PRELOADING, SLOWEST, await_during, await_until
from trainer.host.fork_server import NAME

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

    def ready():
        """The process that forks the next worker, once it has nothing more to do: only its main thread is left."""
        pids = project.pids(1, run)
        others = [pid for pid in children(pids["supervisor"]) if pid != pids.get("worker")]
        return [pid for pid in others if "_pywrap_tensorflow" in _maps(pid) and len(os.listdir(f"/proc/{pid}/task")) == 1]

    try:
        for steps in (30, 80):
            project.await_steps(playbook, run, steps)
            hold.touch()
            await_during(playbook, ready, 120, "the import")
            (server,), first = ready(), project.pids(1, run)["worker"]
            os.kill(first, signal.SIGKILL)
            await_until(lambda before=first: project.has_another(1, run, before), 60, "the next worker")
            assert project.pids(1, run)["worker"] in children(server)
            hold.unlink()
        output, _ = playbook.communicate(timeout=240 * SLOWEST)
    finally:
        hold.unlink(missing_ok=True)
    assert playbook.returncode == 0, output
    assert project.summary(run)["restarts"] == 2
    assert project.summary(run)["weights_sha256"] == project.summary("without-fault")["weights_sha256"]


def _maps(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def test_workers_share_the_import_made_beside_plan(project, tmp_path):
    """Both are forked from one process, which began with the command; their weights are those of workers that import themselves."""
    run, hold, own = "forked", tmp_path / "hold", tmp_path / "own.py"
    own.write_text(OWN.format(hold=str(hold)))
    given = [f"{name}={own}:{function}" for name, function in (("model", "build"), ("dataset", "data"), ("callbacks", "paced"))]
    given += ["epochs=1", "set=train.batch_size=32,train.steps_per_call=1"]
    project.play("train", "run=not-forked", *given)
    variables = project.root / "inventory/local/group_vars/workers.yml"
    without = variables.read_text()
    variables.write_text(without.removesuffix(NO_PRELOADING))
    hold.touch()
    try:
        playbook = project.start("train", f"run={run}", *given)
        project.await_steps(playbook, run, 0)
        parents = {_parent(project.pids(worker, run)["worker"]) for worker in (1, 2)}
        hold.unlink()
        output, _ = playbook.communicate(timeout=240 * SLOWEST)
    finally:
        hold.unlink(missing_ok=True)
        variables.write_text(without)
    (server,) = parents
    waiting = Path(f"/proc/{server}/cmdline").read_text()
    os.kill(server, signal.SIGTERM)
    assert playbook.returncode == 0, output
    assert f"\0{NAME}" in waiting
    assert project.summary(run)["weights_sha256"] == project.summary("not-forked")["weights_sha256"]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
