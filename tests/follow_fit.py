"""Keras programs on two workers with uneven shares of each batch, against Keras' own `fit` on one worker with the whole batch.

python -m tests.follow_fit    prints the table of docs/optimizers.md: the largest difference of a weight after 50 steps
"""

import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests import keras_programs
from tests.keras_programs import OPTIMIZERS, PROGRAMS, SETTINGS
from tests.project import ROOT


def train_pair(folder: Path) -> list[dict[str, np.ndarray]]:
    """By rank: weights and states of metrics of each program after training on two workers, two processes."""
    pair = socket.socketpair()
    files = [folder / f"{rank}.npz" for rank in range(2)]
    command = [sys.executable, "-m", "tests.follow_fit"]
    workers = [
        subprocess.Popen([*command, str(rank), str(end.fileno()), str(files[rank])], cwd=ROOT, pass_fds=[end.fileno()])
        for rank, end in enumerate(pair)
    ]
    assert [worker.wait(timeout=600) for worker in workers] == [0, 0]
    return [dict(np.load(file)) for file in files]


def work(rank: int, number: int, out: str) -> None:
    """Train every program as one of two workers, connected by this socket."""
    from trainer.direct import Direct

    connection = socket.socket(fileno=number)
    connection.setblocking(False)
    direct = Direct(rank, {1 - rank: connection}, timeout=60.0)
    arrays = {}
    for name in PROGRAMS:
        weights, states = keras_programs.on_a_worker(name, rank, direct)
        arrays |= {f"{name}/weights": weights, **{f"{name}/{number}": state for number, state in enumerate(states)}}
    np.savez(out, **arrays)


def table() -> str:
    """A row per optimizer and setting: the largest difference of a weight, relative to the largest weight, and to that weight itself."""
    with tempfile.TemporaryDirectory() as folder:
        trained = train_pair(Path(folder))[0]
    lines = ["| optimizer | of the largest weight | of the weight itself |", "| --- | ---: | ---: |"]
    for name in (*OPTIMIZERS, *SETTINGS):
        ours, alone = trained[f"{name}/weights"], keras_programs.weights(keras_programs.by_fit(name))
        apart = np.abs(ours - alone)
        lines.append(f"| `{name}` | {apart.max() / np.abs(alone).max():.1e} | {(apart / np.maximum(np.abs(alone), 1e-12)).max():.1e} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:]:
        work(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    else:
        print(table())
