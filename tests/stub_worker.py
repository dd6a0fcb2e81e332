"""A worker without TensorFlow: takes the place of `trainer/worker/backend.py` in a scratch copy of the project
(`tests.project.copy_project`).

Everything else is the product's: command line, run directory, records, heartbeats, signals, exit codes, handshake, direct exchange, states,
snapshots, summary. The weights are a hash chained over (seed, step, what was trained), equal on all workers and on any number of
workers; a reduction's memory is such a hash of what this worker trained alone. So "ends with the weights of an uninterrupted run"
is proven for every example of every step.

A test holds all workers of a run before a step with the file `<project>/.lockstep/stub/<run>.json`, `{"hold": 6}` (steps that have
ended), until it deletes the file, or somebody asks a worker to stop or to make room for a host; the number of the step before which they
wait is in `<run>.held`;
`{"exit": [rank, step, code]}` ends a worker before a step, -1 while tracing.
`tests/contract/test_conformance.py` compares this worker with the real one.
"""

import hashlib
import json
import os
import queue
import socket
import struct
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from trainer.checkpoint import starting_weights
from trainer.common.errors import LockstepError, PeerLost
from trainer.common.files import read_json
from trainer.config.schema import Train
from trainer.data.batch import Batch, Call
from trainer.engine import batch_shares
from trainer.engine.job import Job
from trainer.network import handshake
from trainer.network.array_group import ArrayGroup
from trainer.network.member import Member, address
from trainer.network.peer_watch import Answer
from trainer.network.sockets_all_reduce import Direct
from trainer.reduction.cost_model import Choice, GradientTraffic
from trainer.rundir.phases import Phase
from trainer.step.step_sums import StepSums

LIBRARIES = ()
MODULES = ("trainer.worker.process", "trainer.worker.loop")
METRICS = ("loss", "loss", "accuracy", "accuracy")
PARTS = ("forward_backward", "compression", "all_reduce", "apply")
SHAPES = [(16, 8), (8,)]
"""Of the gradients of a model as small as the stub's."""
JOIN, ASK, ANSWER = b"J", b"?", b"!"
ANSWER_S = 5.0
EXCHANGE_S = 600.0
AGAIN_S = 0.02
DIVERGING = 1e9
"""Above this learning rate."""
TRACING = -1
"""Instead of a step's number."""


class Variable:
    """An array that training replaces; the part of TensorFlow's interface that states need."""

    def __init__(self, value: np.ndarray):
        self._value = value
        self.shape = value.shape

    def numpy(self) -> np.ndarray:
        return self._value

    def assign(self, value: np.ndarray) -> None:
        self._value = np.array(value)


class Cluster(ArrayGroup):
    """Workers that sum over connections to rank 0, on the ports that TensorFlow would use."""

    def __init__(self, member: Member, direct_port: int):
        self.member, self.direct, self._direct_port = member, None, direct_port
        self._joined: queue.Queue[tuple[int, socket.socket]] = queue.Queue()
        self._server = socket.create_server(("", address(member.addresses[member.rank])[1]), backlog=128)
        threading.Thread(target=self._serve, daemon=True).start()
        self._connections: dict[int, Connection] = {}
        if member.rank:
            self._connections[0] = _connected(member.addresses[0], JOIN + struct.pack("!i", member.rank))
        while not member.rank and len(self._connections) < member.workers - 1:
            rank, joined = self._joined.get()
            self._connections[rank] = Connection(joined.detach())
        self.sum(np.zeros(1, np.int32))

    def _serve(self) -> None:
        while True:
            connection, _ = self._server.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        try:
            kind = connection.recv(1)
            if kind == ASK:
                connection.sendall(ANSWER)
            elif kind == JOIN:
                self._joined.put((struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))[0], connection))
                return
        except OSError:
            pass
        connection.close()

    def check_generation(self, generation: int) -> None:
        others = self.gather([generation])[:, 0]
        if len(different := np.flatnonzero(others != generation)):
            rank = int(different[0])
            raise PeerLost(f"rank {rank} is of generation {others[rank]}, this worker of {generation}", rank)

    def connect(self, transport: str) -> None:
        if transport != "tensorflow" and self.member.workers > 1:
            sockets = handshake.connect(self.member.rank, self.member.hosts, self.sum, self._direct_port)
            self.direct = Direct(self.member.rank, sockets, EXCHANGE_S, self.member.hosts)

    def all_reduce(self, values: np.ndarray) -> np.ndarray:
        """The sum of a step, on the transport of gradients."""
        return self.sum(values) if self.direct is None else self.direct.all_reduce([values])[0].copy()

    def sum(self, values: np.ndarray) -> np.ndarray:
        rank = 0
        try:
            if self.member.rank:
                self._connections[0].send_bytes(values.tobytes())
                return np.frombuffer(self._connections[0].recv_bytes(), values.dtype).reshape(values.shape)
            total = values.copy()
            for rank in sorted(self._connections):
                total += np.frombuffer(self._connections[rank].recv_bytes(), values.dtype).reshape(values.shape)
            for connection in self._connections.values():
                connection.send_bytes(total.tobytes())
        except (OSError, EOFError) as error:
            raise PeerLost(f"rank {rank} ({self.member.hosts[rank]}) closed its connection: it ended", rank) from error
        return total


def _connected(endpoint: str, greeting: bytes) -> Connection:
    while True:
        try:
            connection = socket.create_connection(address(endpoint))
            connection.sendall(greeting)
        except OSError:
            time.sleep(AGAIN_S)
        else:
            return Connection(connection.detach())


def join(task: Any, threads: int, gpus: int, direct_port: int) -> Cluster:
    """See `trainer.worker.backend.join`."""
    if task is not None:
        raise LockstepError("the stub worker knows no parameter servers")
    member = Member.from_environment()
    print(f"rank {member.rank} of {member.workers}: {json.dumps(member.addresses)}, {threads} threads", flush=True)
    _CLUSTER.append(member)
    return Cluster(member, direct_port)


_CLUSTER: list[Member] = []


def ask(rank: int) -> Answer:
    """See `trainer.worker.backend.ask`."""
    try:
        with socket.create_connection(address(_CLUSTER[0].addresses[rank]), timeout=ANSWER_S) as connection:
            connection.sendall(ASK)
            return Answer.ALIVE if connection.recv(1) == ANSWER else Answer.GONE
    except TimeoutError:
        return Answer.SILENT
    except OSError:
        return Answer.GONE


def is_error(error: Exception) -> bool:
    """See `trainer.worker.backend.is_error`."""
    return False


def engine(job: Job, cluster: Cluster, before: Any, kept: Any) -> "Engine":
    """See `trainer.worker.backend.engine`."""
    return Engine(job, cluster)


class Model:
    """What a snapshot holds."""

    def __init__(self, weights: Variable):
        self.weights, self.stop_training = weights, False

    def save(self, path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("weights", self.weights.numpy().tobytes())


class NoCallbacks:
    """See `trainer.user_code.callbacks.Callbacks`."""

    variables: Sequence[Variable] = ()
    any = anywhere = per_batch = per_test_batch = ends_at_nan = False

    def __init__(self, epochs: int, steps: int):
        self.epochs, self.steps = epochs, steps

    def attach(self, loop: Any, before: Any, done: int) -> None: ...

    def state(self) -> list[dict[str, Any]]:
        return []


class Results:
    """Metrics from sums of values and counts."""

    columns, follow_states = METRICS, False

    def show(self, sums: Sequence[float]) -> None: ...

    def summed(self, before: Sequence[float], rows: np.ndarray) -> np.ndarray:
        return rows.astype(np.float64).sum(axis=0) + (before or 0.0)

    def __call__(self, sums: Sequence[float]) -> dict[str, float]:
        loss, losses, right, answers = np.asarray(sums, np.float64)
        return {"loss": float(loss / max(1.0, losses)), "accuracy": float(right / max(1.0, answers))}


class Engine:
    """See `trainer.engine.base.Engine`."""

    rate, validates, validates_in_order, feeds_all, averages = None, True, False, False, False
    from_chief, follow_chief = SimpleNamespace(on=False), staticmethod(bool)

    def __init__(self, job: Job, cluster: Cluster):
        self._job, self._cluster, member, config = job, cluster, cluster.member, job.config
        self._weights = Variable(_hashed(b"initial", config.seed))
        self.model, self.weights, self.variables = Model(self._weights), [self._weights], [self._weights]
        job.metrics.phase(Phase.CHOOSING)
        name = config.reduction.name if config.reduction.name in ("powersgd", "half") else "packed"
        self.memory = [Variable(_hashed(b"memory", member.rank))] if name == "powersgd" and member.workers > 1 else []
        self.choice = Choice("packed", "to nobody: one worker trains", 0)
        if member.workers > 1:
            transport, traffic = "tensorflow" if cluster.direct is None else "direct", GradientTraffic(config.reduction, SHAPES)
            sent, sums = traffic.sent_bytes(name), traffic.sums(name, transport)
            self.choice = Choice(name, "as they are: as configured", sent, transport=transport, sums=sums)
        job.metrics.record("reduction", name=self.choice.name, why=self.choice.why, measured=False)
        self.warmup = config.reduction.warmup_steps if self.memory else 0
        self.profile_every, self.results = config.telemetry.profile_every, Results()
        self.validation_results = self.results
        self.shares = batch_shares.given(config.train, member.workers) or [1] * member.workers
        # Trials of a sweep lie one folder deeper than runs.
        self._orders = job.run.parents[3 if job.run.parents[1].name == "trials" else 2] / "stub" / f"{job.run.name}.json"

    def trace(self) -> None:
        self._obey(TRACING)

    def trace_profiled(self) -> None: ...

    def callbacks(self, given: Any, epochs: int, steps: int, is_chief: bool) -> NoCallbacks:
        return NoCallbacks(epochs, steps)

    def fit(self, loop: Any, callbacks: NoCallbacks, first: int, batches: int) -> None:
        """The loops of Keras' `fit`, and the hooks of its callbacks."""
        self.model.stop_training = False
        for epoch in range(first, callbacks.epochs):
            loop.epoch_begins(epoch)
            for step in range(callbacks.steps):
                logs = loop.train(step)
                loop.batch_ends()
                if self.model.stop_training:
                    break
            logs = dict(logs)
            if batches and loop.validates(epoch):
                for batch in range(batches):
                    validated = loop.test(batch, batch)
                logs |= {f"val_{name}": value for name, value in validated.items()}
            loop.steps_end()
            loop.epoch_ends(epoch, logs)
            if self.model.stop_training:
                break
        loop.train_ends(None)

    def load(self, path: Path, given: Mapping[str, str], train: Train) -> list[str]:
        def loaded(model: Model, own: Path, *_: bool) -> list[str]:
            model.weights.assign(_hashed(own.read_bytes(), 0))
            return []

        with mock.patch.object(starting_weights, "_loaded", loaded):
            return starting_weights.load(self.model, path, dict(given), train.skip_mismatch, train.weights_by_name)

    def read(self, variables: Sequence[Variable]) -> list[np.ndarray]:
        return [variable.numpy() for variable in variables]

    def settle(self) -> list[np.ndarray]:
        return []

    def record(self, epoch: int) -> None: ...

    def offer(self, epoch: int) -> None: ...

    def evaluated(self, over: Callable[[], bool]) -> list[int]:
        return []

    def train(self, call: Call, batch: Batch, rates: np.ndarray, number: int) -> tuple[StepSums, dict[str, float] | None]:
        started = time.monotonic()
        rows = np.stack([self._step(batch.at(index), float(rates[index]), float(batch.asks)) for index in range(call.steps)])
        return StepSums(rows), dict.fromkeys(PARTS, (time.monotonic() - started) / len(PARTS)) if call.taken_apart else None

    def _step(self, batch: Batch, rate: float, asks: float) -> np.ndarray:
        number = int(batch.number)
        self._obey(number)
        trained = _hashes(batch.data, batch.weights)
        sums = [asks, *_measured(number, float(batch.weights.sum()), rate)]
        total = self._cluster.all_reduce(np.array(sums, np.float32)) if self._cluster.member.workers > 1 else np.array(sums, np.float32)
        together = self._cluster.all_reduce(trained) if self._cluster.member.workers > 1 else trained
        self._weights.assign(_hashed(self._weights.numpy().tobytes() + together.tobytes() + struct.pack("!d", rate), number))
        for one in self.memory:
            one.assign(_hashed(one.numpy().tobytes() + trained.tobytes(), number))
        return total

    def _obey(self, number: int) -> None:
        """Wait or end before a step, as a test has ordered."""
        while True:
            orders = _read(self._orders)
            rank, step, code = orders.get("exit", (-1, 0, 0))
            if (rank, step) == (self._cluster.member.rank, number):
                os._exit(code)
            held = number >= orders.get("hold", number + 1) and not (self._job.stop_asked() or self._job.room_asked())
            if held and not self._cluster.member.rank:
                self._orders.with_suffix(".held").write_text(str(number))
            # One that goes on takes the others with it.
            if int(self._cluster.sum(np.array([held], np.int32))[0]) < self._cluster.member.workers:
                return
            time.sleep(AGAIN_S)

    def validated(self, cluster: Cluster, batches: int) -> None: ...

    def validate(self, batches: Iterable[Any], last: int) -> np.ndarray:
        count = float(sum(len(next(iter(_leaves(batch)))) for _, batch in batches))
        return np.array(_measured(self._job.metrics.step, count)[1:], np.float64)


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(read_json(path))
    except (OSError, ValueError):
        return {}


def _measured(number: int, images: float, rate: float = 0.0) -> list[float]:
    """A step's images, and the sums of metrics that get better with its number; the loss is no number after a step of this rate."""
    loss = float("nan") if number and rate > DIVERGING else 2.0 / (1.0 + 0.05 * number)
    return [images, loss * images, images, (1 - loss / 3) * images, images]


def _hashed(data: bytes, number: int) -> np.ndarray:
    return np.frombuffer(hashlib.sha256(data + struct.pack("!q", number)).digest(), np.int32).copy()


def _leaves(data: Any) -> Iterable[np.ndarray]:
    if isinstance(data, dict):
        data = [data[name] for name in sorted(data)]
    if isinstance(data, list | tuple):
        for part in data:
            yield from _leaves(part)
    else:
        yield np.asarray(data)


def _hashes(data: Any, weights: np.ndarray) -> np.ndarray:
    """The sum of a hash of each example, so that it does not matter which worker trained it."""
    leaves, total = [np.ascontiguousarray(leaf) for leaf in _leaves(data)], np.zeros(2, np.uint32)
    for index in np.flatnonzero(weights):
        row = b"".join(leaf[index].tobytes() for leaf in leaves)
        total += np.array([zlib.crc32(row), zlib.adler32(row)], np.uint32)
    return total.view(np.int32)


class EventFile:
    """See `trainer.worker.backend.EventFile`."""

    def __init__(self, folder: Path):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._writer = RecordWriter((folder / f"events.out.tfevents.{time.time_ns()}.stub").open("wb"))
        self._add(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        self._add(Event(wall_time=time.time(), step=step, summary=summary))

    def _add(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()
