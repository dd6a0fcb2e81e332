"""Keras programs on two workers that share each batch unevenly, against Keras' own `fit` on one worker with the whole batch.

python -m tests.follow_fit    prints the table of benchmarks/README.md: the largest difference of a weight after 50 steps
"""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tests import keras_programs, preloaded
from tests.keras_programs import OPTIMIZERS, SETTINGS
from tests.project import SLOWEST
from trainer.keras_fit.distribute import SILENT_S, Peers
from trainer.network.member import Member
from trainer.network.sockets_all_reduce import Direct

STEPS, ALONE = 50, 2
Trained = dict[str, np.ndarray]
"""`NAME/weights` of each program, and its metrics as `NAME/metric/METRIC`."""


def train(folder: Path, names: Iterable[str], steps: int) -> list[Trained]:
    """Train programs in three processes: on the first of two workers, on the second, and by `fit` alone."""
    given = [*enumerate(socket.socketpair()), (ALONE, subprocess.DEVNULL)]
    files = [folder / f"{rank}.npz" for rank, _ in given]
    started = []
    for (rank, connection), file in zip(given, files, strict=True):
        words = ("-m", "tests.follow_fit", str(rank), str(steps), str(file), *names)
        started.append(preloaded.logged(words, folder, file.with_suffix(".log"), preloaded.ONE_THREAD, connection))
    codes = [process.wait(600 * SLOWEST) for process in started]
    assert codes == [0, 0, 0], "\n".join(file.with_suffix(".log").read_text() for file in files)
    return [dict(np.load(file)) for file in files]


def work(rank: int, steps: int, out: str, names: Iterable[str]) -> None:
    """Train programs as one of two workers, connected by this process' standard input, or alone."""
    peers = None
    if rank != ALONE:
        connection = socket.socket(fileno=os.dup(0))
        connection.setblocking(False)
        peers = Peers(Member(rank, ["first", "second"]), Direct(rank, {1 - rank: connection}, timeout=SILENT_S))
    arrays = {}
    for name in names:
        weights, metrics = keras_programs.trained(name, steps, peers)
        arrays |= {f"{name}/weights": weights, **{f"{name}/{metric}": np.array(value) for metric, value in metrics.items()}}
    np.savez(out, **arrays)


def table() -> str:
    """A row per optimizer and setting: the largest difference of a weight, relative to the largest weight, and to that weight itself."""
    names = (*OPTIMIZERS, *SETTINGS)
    with tempfile.TemporaryDirectory() as folder:
        trained, _, fitted = train(Path(folder), names, STEPS)
    lines = ["| optimizer | of the largest weight | of the weight itself |", "| --- | ---: | ---: |"]
    for name in names:
        ours, alone = trained[f"{name}/weights"], fitted[f"{name}/weights"]
        apart = np.abs(ours - alone)
        lines.append(f"| `{name}` | {apart.max() / np.abs(alone).max():.1e} | {(apart / np.maximum(np.abs(alone), 1e-12)).max():.1e} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:]:
        work(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
    else:
        print(table())
