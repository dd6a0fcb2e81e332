"""The evaluator: a host that evaluates each snapshot on the test examples while the others train."""

import contextlib
import hashlib
import hmac
import socket
import traceback
from pathlib import Path
from typing import Any, NoReturn

from trainer.common.clock import CLOCK, Clock, repeating
from trainer.common.errors import LockstepError
from trainer.common.files import read_json, write_json
from trainer.evaluation.evaluate import Test
from trainer.parameter_server.roles import Task
from trainer.parameter_server.snapshot_offers import ALIVE, CHUNK, DONE, HEADER, REFUSED, SEND, Place
from trainer.rundir.layout import EVALUATIONS, record_path
from trainer.rundir.metrics_log import Metrics
from trainer.rundir.phases import Phase

TELL_S = 2.0
"""Between two signs of life during an evaluation."""
TIMES, MORE = 8, 2**26
"""Largest size of a snapshot: a multiple of the bytes of its weights, plus bytes; it may hold the optimizer's variables."""


class ChiefGone(Exception):
    """The chief is gone."""


class Evaluator:
    """Evaluates what the chief hands out."""

    def __init__(self, test: Test, folder: Path, place: Place, metrics: Metrics):
        """Write evaluations into `folder`."""
        self._test, self._folder, self._place, self._metrics = test, folder, place, metrics
        weights = sum(weight.value.shape.num_elements() * weight.value.dtype.size for weight in test.model.weights)
        self._most = TIMES * weights + MORE

    def serve(self, connection: socket.socket) -> None:
        """Evaluate snapshots until the chief is gone (ChiefGone)."""
        while True:
            self._one(connection)

    def _one(self, connection: socket.socket) -> None:
        self._place.clock.select([connection], None)
        header = self._place.read(_read(connection, HEADER))
        if header is None:
            _say(connection, REFUSED)
            raise ChiefGone
        epoch, size, sha256 = header
        path = record_path(self._folder, epoch)
        if _read_record(path).get("snapshot_sha256") == sha256.hex():
            _say(connection, DONE)
            return
        if size > self._most:
            print(f"error: the snapshot of epoch {epoch} has {size:,} bytes, and the model's at most {self._most:,}", flush=True)
            _say(connection, REFUSED)
            # What follows would be its content.
            raise ChiefGone
        _say(connection, SEND)
        try:
            record = self._evaluated(connection, epoch, size, sha256)
            write_json(path, record)
        except ChiefGone:
            raise
        except Exception as error:
            # Whatever a snapshot or this host's disk does: the others train, and the next snapshot may do.
            traceback.print_exception(error)
            print(f"error: the snapshot of epoch {epoch}: {error}", flush=True)
            _say(connection, REFUSED)
            return
        self._metrics.record("evaluation", epoch=epoch, metrics=record["metrics"])
        self._metrics.phase(Phase.SERVING, f"has evaluated epoch {epoch}")
        _say(connection, DONE)

    def _evaluated(self, connection: socket.socket, epoch: int, size: int, sha256: bytes) -> dict[str, Any]:
        self._folder.mkdir(parents=True, exist_ok=True)
        snapshot = self._folder / ".part-snapshot.keras"
        try:
            _receive(connection, snapshot, size, sha256)
            self._metrics.phase(Phase.SERVING, f"evaluates epoch {epoch}")
            with repeating(TELL_S, lambda: _beat(connection), self._place.clock):
                return self._test.record(epoch, snapshot) | {"snapshot_sha256": sha256.hex()}
        finally:
            snapshot.unlink(missing_ok=True)


def follow(task: Task, test: Test, own: Path, secret: bytes, metrics: Metrics, clock: Clock = CLOCK) -> NoReturn:
    """Evaluate the snapshots of the chief until this process is ended from outside.

    Args:
        task: this process' place in the cluster.
        test: the run's test examples and its model.
        own: the host's part of the run directory.
        secret: what only the launch knows.
        metrics: of this process.
        clock: the time that passes meanwhile.
    """
    place = Place(task, secret, clock)
    evaluator = Evaluator(test, own / EVALUATIONS, place, metrics)
    metrics.phase(Phase.SERVING)
    while True:
        with contextlib.suppress(ChiefGone), place.chief(task.index) as connection:
            evaluator.serve(connection)


def _receive(connection: socket.socket, path: Path, size: int, sha256: bytes) -> None:
    """Write a snapshot to a file, if it fits; LockstepError if it is not the one that the chief meant."""
    made, left, failed = hashlib.sha256(), size, None
    with path.open("wb") as stream:
        while left:
            part = _read(connection, min(CHUNK, left))
            made.update(part)
            left -= len(part)
            try:
                _ = failed or stream.write(part)
            except OSError as error:
                # What is not read would be taken for the next header.
                failed = error
    if failed:
        raise failed
    if not hmac.compare_digest(made.digest(), sha256):
        raise LockstepError("its bytes are not those that the chief meant")


def _beat(connection: socket.socket) -> None:
    """A sign of life for the chief; if it is gone, the evaluation goes on to its end."""
    with contextlib.suppress(ChiefGone):
        _say(connection, ALIVE)


def _say(connection: socket.socket, word: bytes) -> None:
    try:
        connection.sendall(word)
    except OSError:
        raise ChiefGone from None


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        try:
            part = connection.recv(count - len(data))
        except OSError:
            raise ChiefGone from None
        if not part:
            raise ChiefGone
        data += part
    return data


def _read_record(path: Path) -> dict[str, object]:
    try:
        return dict(read_json(path))
    except (OSError, ValueError):
        return {}
