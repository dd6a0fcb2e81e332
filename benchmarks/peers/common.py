"""Code shared by all peer programs: command line, the meeting of the workers, images, clock, result.

A peer program trains the task model on random images and times its own steps:

    python torch_ddp.py --rank 0 --addresses 10.0.0.1:12345,10.0.0.2:12345 --steps 40 --warm-up 16 --batch 64 --result rank0.json

All workers of a cell run the same program; `benchmarks/peers.yml` starts them. Standard library and NumPy only:
this file runs in the environment of every peer.
"""

import argparse
import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SIZE, CLASSES, PARAMETERS = (32, 32, 3), 10, 3_688_714
CHUNK = 8
"""Steps between two readings of the clock, and the number of different batches."""
LEARNING_RATE, MOMENTUM = 0.01, 0.9
MEETING_PORTS = 1000
"""Distance of the meeting's port from the first worker's port."""
JOIN_S = 240.0
PEER_GONE = 75
SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class Task:
    """One worker's part of a cell, from the command line."""

    rank: int
    addresses: list[str]
    """`address:port` of all workers, in order of rank."""
    steps: int
    """Most steps to time."""
    warm_up: int
    """Steps before the timed ones."""
    seconds: float
    """The timed part is shortened if it would take longer than this; it has at least CHUNK steps."""
    batch: int
    threads: int
    variant: str
    """The variant of the program, such as its compression; empty for the plain form."""
    result: Path

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.addresses)

    @property
    def address(self) -> str:
        """This worker's address, without port."""
        return self.addresses[self.rank].rpartition(":")[0]

    @property
    def first(self) -> tuple[str, int]:
        """Address and port of the first worker."""
        address, _, port = self.addresses[0].rpartition(":")
        return address, int(port)

    @classmethod
    def parse(cls) -> "Task":
        """Read the command line."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--rank", type=int, required=True)
        parser.add_argument("--addresses", required=True, type=lambda text: text.split(","))
        parser.add_argument("--steps", type=int, default=40)
        parser.add_argument("--warm-up", type=int, default=16)
        parser.add_argument("--seconds", type=float, default=20.0)
        parser.add_argument("--batch", type=int, default=64)
        parser.add_argument("--threads", type=int, default=1)
        parser.add_argument("--variant", default="")
        parser.add_argument("--result", type=Path, required=True)
        return cls(**vars(parser.parse_args()))

    def chunks(self, pace: float) -> int:
        """Chunks to time at `pace` seconds per step: those of `steps`, fewer if they would take longer than `seconds`; at least one."""
        return max(1, min(self.steps // CHUNK, int(self.seconds / (pace * CHUNK))))

    @property
    def interface(self) -> str:
        """Name of the network interface that has this worker's IPv4 address; `lo` for the loopback's."""
        if self.address.startswith("127."):
            return "lo"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _, name in socket.if_nameindex():
                with contextlib.suppress(OSError):
                    answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()))
                    if socket.inet_ntoa(answer[20:24]) == self.address:
                        return name
        raise OSError(f"no network interface of this host has the address {self.address}; set worker_address")

    def sent_bytes(self) -> float:
        """Bytes sent through this worker's interface so far, divided evenly among workers that share an interface."""
        name = self.interface
        for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines():
            own, colon, rest = line.partition(":")
            if colon and own.strip() == name:
                return int(rest.split()[8]) / sum(endpoint.rpartition(":")[0] == self.address for endpoint in self.addresses)
        raise OSError(f"/proc/net/dev does not list {name}")


@dataclass
class Trained:
    """A model that a framework trains."""

    run: Callable[[int], float]
    """Trains N steps (CHUNK or fewer) and returns the last loss when all of them are done."""
    weights: Callable[[], Iterable[np.ndarray]]
    """All current weights."""
    versions: dict[str, str] = field(default_factory=dict)
    """Package to version."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings that a sceptic would want to know."""
    batch: int | None = None
    """This worker's images per step, if different from the task's."""
    parts: list[dict[str, list[float]]] = field(default_factory=list)
    """CPU seconds and seconds of each part for every call of `run`, if the parts are watched."""
    before: str = field(init=False)
    """Digest of the weights before the first step: weights that do not change were not trained."""

    def __post_init__(self) -> None:
        """Record the initial weights."""
        self.before = digest(self.weights())["weights_sha256"]


def images(rank: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """CHUNK batches of random images `[CHUNK, batch, 32, 32, 3]` uint8 and labels `[CHUNK, batch]` int32, the same for all systems."""
    random = np.random.default_rng(rank)
    pixels = random.integers(0, 256, (CHUNK, batch, *SIZE), dtype=np.uint8)
    return pixels, random.integers(0, CLASSES, (CHUNK, batch)).astype(np.int32)


class Meeting:
    """A separate connection between the workers for a few messages before and after the timed part; it is idle in between.

    It also ends this process when another worker is gone: frameworks would wait for minutes.
    """

    def __init__(self, given: Task):
        """Connect through the first worker; return when all workers are there."""
        self.rank, self.workers, self._over = given.rank, given.workers, False
        endpoint = (given.first[0], given.first[1] + MEETING_PORTS)
        self._lines = self._host(endpoint) if self.rank == 0 else [self._join(endpoint)]
        self._heard: list[queue.Queue[Any]] = [queue.Queue() for _ in self._lines]
        for line, heard in zip(self._lines, self._heard, strict=True):
            threading.Thread(target=self._listen, args=(line, heard), daemon=True).start()

    def _host(self, endpoint: tuple[str, int]) -> list[socket.socket]:
        lines: dict[int, socket.socket] = {}
        with socket.create_server(endpoint, backlog=self.workers) as server:
            server.settimeout(JOIN_S)
            while len(lines) < self.workers - 1:
                line, _ = server.accept()
                lines[struct.unpack("!I", line.recv(4, socket.MSG_WAITALL))[0]] = line
        return [lines[rank] for rank in sorted(lines)]

    def _join(self, endpoint: tuple[str, int]) -> socket.socket:
        deadline = time.monotonic() + JOIN_S
        while True:
            try:
                line = socket.create_connection(endpoint, timeout=JOIN_S)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        line.settimeout(None)
        line.sendall(struct.pack("!I", self.rank))
        return line

    def _listen(self, line: socket.socket, heard: "queue.Queue[Any]") -> None:
        with contextlib.suppress(OSError), line.makefile("r", encoding="utf-8") as words:
            for row in words:
                heard.put(json.loads(row))
        if not self._over:
            print("another worker of this cell is gone", flush=True)
            os._exit(PEER_GONE)

    def share(self, value: Any) -> list[Any]:
        """All workers' values, in order of rank; returns when all have sent theirs."""
        if self.rank == 0:
            values = [value, *(heard.get() for heard in self._heard)]
            for line in self._lines:
                _say(line, values)
            return values
        _say(self._lines[0], value)
        return list(self._heard[0].get())

    def end(self) -> None:
        """Disconnect when all workers are done."""
        self._over = True
        self.share(None)
        # The first worker's answer may still be in flight.
        for line in self._lines:
            line.shutdown(socket.SHUT_WR)


def _say(line: socket.socket, value: Any) -> None:
    line.sendall((json.dumps(value) + "\n").encode())


def measure(given: Task, meeting: Meeting, trained: Trained, alone: bool = False) -> None:
    """Warm up, time, write the result.

    Args:
        given: this worker's task.
        meeting: with the other workers.
        trained: what to time.
        alone: the workers do not wait for each other in training: they start together, and none stops before all are timed.
    """
    clock = Clock(given, meeting)
    while clock.goes_on(trained.run(CHUNK)):
        pass
    if alone:
        # Until all workers are timed, so that none has the machine to itself.
        asking = threading.Thread(target=meeting.share, args=(None,))
        asking.start()
        while asking.is_alive():
            trained.run(CHUNK)
    clock.write(trained)
    meeting.end()


class Clock:
    """Warm-up, then the timed steps: called after every CHUNK steps, it decides whether to go on."""

    def __init__(self, given: Task, meeting: Meeting):
        """Start with the warm-up."""
        self._given, self._meeting = given, meeting
        self.before = self._warm_up = max(2, given.warm_up // CHUNK)
        self._timed = 0
        self.durations: list[float] = []
        self.losses: list[float] = []
        self.started = self.cpu = self.sent = 0.0
        self._begun = time.perf_counter()

    def goes_on(self, loss: float) -> bool:
        """Note that CHUNK more steps are done."""
        took = (time.perf_counter() - self._begun) / CHUNK
        self.losses = [*self.losses[:1], loss]
        if self._warm_up > 0:
            self._warm_up -= 1
            if self._warm_up == 0:
                self._begin(took)
        else:
            self.durations.append(took)
            if len(self.durations) == self._timed:
                self._finish()
                return False
        self._begun = time.perf_counter()
        return True

    def _begin(self, pace: float) -> None:
        """Start all workers together, with as many timed steps as the slowest can do in time."""
        self._timed = self._given.chunks(max(self._meeting.share(pace)))
        self.started, self.cpu, self.sent = time.time(), time.process_time(), self._given.sent_bytes()

    def _finish(self) -> None:
        self.cpu, self.sent = time.process_time() - self.cpu, self._given.sent_bytes() - self.sent

    def write(self, trained: Trained) -> None:
        """Write what was measured, whole or not at all."""
        given, steps = self._given, len(self.durations) * CHUNK
        result = {
            "rank": given.rank,
            "workers": given.workers,
            "batch": given.batch if trained.batch is None else trained.batch,
            "variant": given.variant,
            "threads": given.threads,
            "steps": steps,
            "seconds_step": sum(self.durations) / len(self.durations),
            "seconds_chunks": self.durations,
            "cpu_seconds_step": self.cpu / steps,
            "sent_bytes_step": self.sent / steps,
            "started_at": self.started,
            "losses": self.losses,
            **digest(trained.weights()),
            "weights_before": trained.before,
            "versions": {"python": platform.python_version(), "numpy": np.__version__, **trained.versions},
            "settings": trained.settings,
            "parts": trained.parts[self.before : self.before + len(self.durations)],
        }
        part = given.result.with_name(f".part-{given.result.name}")
        part.write_text(json.dumps(result), encoding="utf-8")
        part.replace(given.result)


def digest(arrays: Iterable[np.ndarray]) -> dict[str, Any]:
    """Number of trained parameters, and a digest of all weights, which is equal on all workers of a synchronous system."""
    count, state = 0, hashlib.sha256()
    for array in arrays:
        count += array.size
        state.update(np.ascontiguousarray(array).tobytes())
    return {"parameters": count, "weights_sha256": state.hexdigest()}


def versions(*packages: str) -> dict[str, str]:
    """Versions of the given packages that are installed."""
    installed = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed
