"""The evaluator: a host that evaluates each snapshot on the test examples while the others train."""

import contextlib
import hmac
import socket
import time
from pathlib import Path
from typing import NoReturn

from trainer.asynchronous.roles import Task
from trainer.asynchronous.server import SERVING
from trainer.asynchronous.snapshots import ALIVE, CHUNK, DONE, HEADER, REFUSED, SEND, Place
from trainer.errors import LockstepError
from trainer.evaluate import Test
from trainer.files import read_json, write_json
from trainer.metrics import Metrics
from trainer.rundir import EVALUATIONS, record_path

TELL_S = 2.0
"""Between two signs of life during an evaluation."""
TIMES, MORE = 8, 2**26
"""A snapshot has at most so many times the bytes of its weights, and so many more: it may hold the optimizer's."""


class Evaluator:
    """Evaluates what the chief hands out."""

    def __init__(self, test: Test, folder: Path, place: Place, metrics: Metrics):
        """Write evaluations into `folder`."""
        self._test, self._folder, self._place, self._metrics = test, folder, place, metrics
        weights = sum(weight.value.shape.num_elements() * weight.value.dtype.size for weight in test.model.weights)
        self._most = TIMES * weights + MORE

    def serve(self, connection: socket.socket) -> None:
        """Evaluate snapshots until the connection ends (OSError)."""
        while True:
            self._one(connection)

    def _one(self, connection: socket.socket) -> None:
        epoch, size, seal = HEADER.unpack(_read(connection, HEADER.size))
        path, before = record_path(self._folder, epoch), _read_record(record_path(self._folder, epoch))
        if before.get("seal") == seal.hex():
            connection.sendall(DONE)
            return
        if size > self._most:
            self._refuse(connection, f"the snapshot of epoch {epoch} has {size:,} bytes, and the model's at most {self._most:,}")
            # What follows would be its content.
            raise ConnectionAbortedError
        connection.sendall(SEND)
        snapshot = self._folder / ".part-snapshot.keras"
        try:
            self._receive(connection, snapshot, epoch, size, seal)
            write_json(path, self._evaluated(connection, epoch, snapshot) | {"seal": seal.hex()})
        except (LockstepError, ValueError, KeyError) as error:
            self._refuse(connection, f"the snapshot of epoch {epoch}: {error}")
            return
        finally:
            snapshot.unlink(missing_ok=True)
        connection.sendall(DONE)

    def _receive(self, connection: socket.socket, path: Path, epoch: int, size: int, seal: bytes) -> None:
        """Write a snapshot to a file; LockstepError if it is not what its header says."""
        made, left = self._place.seal(epoch, size), size
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            while left:
                part = _read(connection, min(CHUNK, left))
                made.update(part)
                stream.write(part)
                left -= len(part)
        if not hmac.compare_digest(made.digest(), seal):
            raise LockstepError("its bytes are not those that the chief sealed")

    def _evaluated(self, connection: socket.socket, epoch: int, snapshot: Path) -> dict[str, object]:
        told_at = 0.0

        def tell(done: int, of: int) -> None:
            nonlocal told_at
            if time.monotonic() - told_at >= TELL_S:
                told_at = time.monotonic()
                self._metrics.phase(SERVING, f"evaluates epoch {epoch}: {done}/{of} examples")
                connection.sendall(ALIVE)

        tell(0, self._test.examples)
        record = self._test.record(epoch, snapshot, tell)
        self._metrics.record("evaluation", epoch=epoch, metrics=record["metrics"])
        self._metrics.phase(SERVING, f"has evaluated epoch {epoch}")
        return record

    def _refuse(self, connection: socket.socket, why: str) -> None:
        print(f"error: {why}", flush=True)
        connection.sendall(REFUSED)


def follow(task: Task, test: Test, own: Path, secret: bytes, metrics: Metrics) -> NoReturn:
    """Evaluate the snapshots of the chief until this process is ended from outside.

    Args:
        task: this process' place in the cluster.
        test: the run's test examples and its model.
        own: the host's part of the run directory.
        secret: what only the launch knows.
        metrics: of this process.
    """
    place = Place(task, secret)
    evaluator = Evaluator(test, own / EVALUATIONS, place, metrics)
    metrics.phase(SERVING)
    while True:
        with contextlib.suppress(OSError), place.chief(task.index) as connection:
            evaluator.serve(connection)


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return data


def _read_record(path: Path) -> dict[str, object]:
    try:
        return dict(read_json(path))
    except (OSError, ValueError):
        return {}
