"""Supervisors of one run as threads of this process: their connections are real, their workers and the time are not."""

import contextlib
import functools
import json
import math
import secrets
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

from control.remote.worker_files import read_records
from tests.fake_clock import FakeClock, FakeProcess
from tests.ports import free_ports
from trainer.common.errors import ClusterError
from trainer.host.process import LET_IN
from trainer.rundir.metrics_log import Metrics
from trainer.rundir.phases import ROOM
from trainer.supervision.child import Patience
from trainer.supervision.rejoin import PAUSE_S
from trainer.supervision.restart_policy import Limits
from trainer.supervision.supervisor import Post, Supervisor

NAMES = ("first", "second", "third")
SUCCEEDED, PREEMPTED, CANCELLED, MADE_ROOM = 0, 42, 142, 175
"""What all workers end with together; the last two with 42 at somebody's request, and with 75 to make room for a host."""
TOGETHER = {SUCCEEDED: "SUCCEEDED", PREEMPTED: "PREEMPTED", CANCELLED: "CANCELLED", MADE_ROOM: ROOM}


def post(folder: Path, rank: int = 0, **others) -> Post:
    """The post of a supervisor of three workers."""
    given = {"limits": Limits(5, 5), "patience": Patience(math.inf, math.inf), "rejoin_wait": 20.0}
    places = {"hosts": NAMES, "workers": 3, "endpoints": NAMES, "peers": [("127.0.0.1", port) for port in range(3)]}
    commands = {"program": ["worker"], "worker": ["train"], "standby": [], "session": []}
    return Post(folder, rank, **places | {"secret": b"", "launch": "l"} | commands | given | others)


class Killed(BaseException):
    """A supervisor was killed."""


class FakeWorker(FakeProcess):
    """A worker: it trains until it is told how to end, and ends when a worker that trains with it is lost."""

    def __init__(self, run: "Run", rank: int, argv: list[str], env: dict[str, str]):
        super().__init__(run.clock, pid=1000 * (rank + 1))
        self._run, self._rank = run, rank
        given = dict(zip(argv[2::2], argv[3::2], strict=True))
        self.generation, self.elapsed = int(given["--generation"]), float(given["--elapsed"])
        self.cluster = json.loads(env["TF_CONFIG"])
        self._metrics = Metrics(run.folders[rank] / "metrics.jsonl")
        self._metrics.step = 10 * self.generation
        self._joins = self.generation in run.join
        self._metrics.phase("joining" if self._joins else "training")
        self._metrics.heartbeat()
        run.workers[rank, self.generation] = self

    def take_steps(self) -> None:
        """Two steps, a second each."""
        for _ in range(2):
            self._metrics.step += 1
            self._metrics.heartbeat()
            self._run.clock.sleep(1.0)

    def obey(self, order: int) -> None:
        """End in an orderly way."""
        if order in TOGETHER:
            self._metrics.phase("ended", TOGETHER[order])
        self._end(order % 100, alone=order not in TOGETHER)

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        if number in (signal.SIGTERM, signal.SIGINT) and self._rank not in self._run.deaf:
            self._end(42)
        if number == signal.SIGKILL:
            self._end(-number)
        if number == LET_IN and self._rank not in self._run.busy:
            for worker in self._run.of(self.generation):
                worker.obey(MADE_ROOM)

    def _end(self, code: int, alone: bool = True) -> None:
        self.end(code)
        for worker in self._run.of(self.generation) if alone else ():
            # As TensorFlow, a worker that has not joined yet waits for minutes.
            if not worker._joins:
                worker.end(75)


class FakeForks:
    """What forks a rank's next workers, unless it is gone."""

    def __init__(self, run: "Run", environment: Mapping[str, str]):
        self.run, self.rank = run, json.loads(environment["TF_CONFIG"])["task"]["index"]
        self.gone = self.ended = False
        self.workers: list[FakeWorker] = []

    def fork(self, arguments: list[str], environment: dict[str, str]) -> FakeWorker:
        if self.gone:
            raise ClusterError("it is gone")
        self.workers.append(FakeWorker(self.run, self.rank, ["worker", *arguments], environment))
        return self.workers[-1]

    def end(self) -> None:
        self.ended = True


class Run:
    """A run of some workers and spares."""

    def __init__(self, folder: Path, clock: FakeClock, workers=2, spares=0, join=(), **options):
        self.clock, self.count = clock, workers
        self.names = NAMES[: workers + spares]
        self.folders = [folder / name for name in self.names]
        self.join, self.busy, self.deaf = set(join), set(), set()
        """Generations whose workers join for ever; ranks of workers that make no room, or do not hear SIGTERM."""
        self.workers: dict[tuple[int, int], FakeWorker] = {}
        places = {"hosts": self.names, "workers": workers, "endpoints": self.names, "secret": secrets.token_bytes(32)}
        self._post = places | {"peers": [("127.0.0.1", port) for port in free_ports(len(self.names))]} | options
        self._codes: dict[threading.Thread, int] = {}
        self._logs = {own: [] for own in self.folders}
        self.supervisors, self._threads = [None] * len(self.names), [None] * len(self.names)
        for rank, own in enumerate(self.folders):
            own.mkdir()
            self.begin(rank)

    def begin(self, rank: int) -> None:
        """Start a supervisor, the first of its host or a later one."""
        popen = functools.partial(FakeWorker, self, rank)
        self.supervisors[rank] = supervisor = Supervisor(post(self.folders[rank], rank, **self._post), self.clock, popen)
        self._threads[rank] = thread = threading.Thread(target=self._supervise, args=[supervisor], daemon=True, name=str(rank))
        thread.start()

    def _supervise(self, supervisor: Supervisor) -> None:
        with contextlib.suppress(Killed):
            self._codes[threading.current_thread()] = supervisor.supervise()

    def say(self, words: str) -> None:
        """Take what the supervisor of this thread tells the user."""
        self._logs[self.folders[self._threads.index(threading.current_thread())]].append(words)

    def of(self, generation: int) -> list[FakeWorker]:
        """The workers of a generation that have not ended."""
        return [one for (_, number), one in self.workers.items() if number == generation and one.returncode is None]

    def await_generation(self, number: int, ranks=None) -> None:
        wanted = {(rank, number) for rank in ranks or range(self.count)}
        self.clock.until(lambda: wanted <= self.workers.keys(), f"generation {number}")

    def await_phase(self, rank: int, phase: str, times: int = 1) -> None:
        self.clock.until(lambda: self.phases(rank).count(phase) >= times, phase)

    def await_visit(self, rank: int) -> None:
        """Until a supervisor waits behind the doors of others."""
        self.clock.until(lambda: any(rank in one._entry.newcomers for one in self.supervisors if one._entry), "the visit")
        self.clock.sleep(2 * PAUSE_S)

    def kill(self, rank: int, generation: int) -> None:
        """Kill a worker."""
        self.workers[rank, generation].send_signal(signal.SIGKILL)

    def lose(self, rank: int) -> None:
        """Kill a supervisor for good; its worker dies with it, and its connections end without a word."""
        supervisor, thread = self.supervisors[rank], self._threads[rank]
        self.clock.handle(thread, _killed)
        self.clock.join(thread)
        supervisor._close_entry(False)
        supervisor._leave_start(False)
        for (one, _), worker in [*self.workers.items()]:
            if one == rank and worker.returncode is None:
                worker.send_signal(signal.SIGKILL)

    def signal(self, rank: int, number: int) -> None:
        """Let a signal come to a supervisor."""
        supervisor = self.supervisors[rank]
        call = supervisor._hang_up if number == signal.SIGHUP else functools.partial(supervisor._stop, number, None)
        self.clock.handle(self._threads[rank], call)

    def do(self, rank: int, generation: int, order: int) -> None:
        """Tell a worker how to end."""
        self.workers[rank, generation].obey(order)

    def all_do(self, generation: int, order: int) -> None:
        for worker in self.of(generation):
            worker.obey(order)

    def end(self, rank: int) -> int:
        """The exit code of a supervisor, once it has ended."""
        thread = self._threads[rank]
        self.clock.until(lambda: not thread.is_alive(), f"the end of {rank}")
        return self._codes[thread]

    def ends(self) -> list[int]:
        return [self.end(rank) for rank in range(len(self.names))]

    def log(self, rank: int) -> str:
        return "\n".join(self._logs[self.folders[rank]])

    def records(self, rank: int, kind: str) -> list[dict]:
        return [record for record in read_records(self.folders[rank] / "metrics.jsonl") if record["kind"] == kind]

    def phases(self, rank: int) -> list[str]:
        return [record["phase"] for record in self.records(rank, "phase")]


def _killed() -> None:
    raise Killed
