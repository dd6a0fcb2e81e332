"""Campaigns that resume: trials measured one after another, one CSV row each, never mixed with those of other conditions.

Used by sweep.yml and by the benchmarks that compare accuracies and peers.
"""

import concurrent.futures
import contextlib
import csv
import fcntl
import re
import statistics
import threading
import time
import typing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from control.common import project, text
from control.common.progress_line import Line
from trainer.common.errors import ConfigError, LockstepError
from trainer.common.files import write_rows

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
LONGEST_NAME = 64
SUMMARY = "summary.json"
LOCK = project.PRIVATE / "sweep.lock"


class Row(Protocol):
    """A dataclass whose fields are the columns of a CSV file."""

    @property
    def trial(self) -> Any:
        """Trial of the row: at most one row per trial."""

    @property
    def measured(self) -> bool:
        """True if the row has numbers; a failed trial is measured again."""


R = TypeVar("R", bound=Row)
S = TypeVar("S")
T = TypeVar("T")
U = TypeVar("U")
LOOK_S = 0.2


class Store(Generic[R]):
    """The CSV file of a campaign; it is complete at all times."""

    def __init__(self, kind: type[R]):
        """Take the columns from the fields of `kind`: str, int, float or bool, or None for an empty cell."""
        self._kind, self._types = kind, typing.get_type_hints(kind)
        self.columns = tuple(field.name for field in fields(kind))  # type: ignore[arg-type]

    def read(self, path: Path) -> list[R]:
        """All rows, in the order of measuring; empty if there is no file.

        Raises:
            LockstepError: the file is not in the format of `put`.
        """
        if not path.is_file():
            return []
        with path.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            if tuple(reader.fieldnames or ()) != self.columns:
                expected = ", ".join(self.columns)
                raise LockstepError(f"{path}: its columns are {reader.fieldnames}, expected {expected}; move it away to measure anew")
            return [self._row(path, number, cells) for number, cells in enumerate(reader, 2)]

    def _row(self, path: Path, number: int, cells: dict[str, str]) -> R:
        try:
            return self._kind(**{name: _value(self._types[name], cell) for name, cell in cells.items()})
        except (KeyError, TypeError, ValueError) as error:
            raise LockstepError(f"{path}, line {number}: {error}; remove that line to measure its trial anew") from None

    def put(self, path: Path, row: R) -> None:
        """Add a row, or replace the row of the same trial."""
        kept = [other for other in self.read(path) if other.trial != row.trial]
        write_rows(path, self.columns, (asdict(one) for one in [*kept, row]))  # type: ignore[call-overload]

    def any_measured(self, path: Path) -> bool:
        """Return whether a campaign has a measured trial: before that, its settings may change."""
        return any(row.measured for row in self.read(path))


def _value(kind: Any, cell: str) -> Any:
    plain, *empty = typing.get_args(kind) or (kind,)
    if empty and not cell:
        return None
    if plain is str and cell is None:
        raise ValueError("too few cells")
    return cell == "True" if plain is bool else plain(cell)


def remaining(trials: Sequence[T], rows: Iterable[Row]) -> list[T]:
    """Trials that are not measured yet; a failed trial is tried again."""
    measured = {row.trial for row in rows if row.measured}
    return [trial for trial in trials if trial not in measured]


class Pace:
    """How long trials take, launch and collection included."""

    def __init__(self, *similar: Callable[[Any], object]):
        """Take the keys by which trials are similar, the closest first; in the end all trials are."""
        self._similar, self._measured = similar, list[tuple[Any, float]]()
        self._guess: Callable[[Any], float] | None = None

    def guess(self, seconds: Callable[[Any], float]) -> None:
        """Use this estimate of a trial's seconds until a trial has been measured."""
        self._guess = seconds

    def add(self, trial: object, seconds: float) -> None:
        """Note the duration of a trial."""
        self._measured.append((trial, seconds))

    def expected(self, trial: object) -> float | None:
        """Estimated seconds of a trial: the median over the most similar ones, before the first measurement a guess; None without one."""
        for key in (*self._similar, lambda _: None):
            if seconds := [taken for other, taken in self._measured if key(other) == key(trial)]:
                return statistics.median(seconds)
        return self._guess(trial) if self._guess else None

    def left(self, trials: Iterable[object]) -> float | None:
        """Estimated seconds of these trials together; None before the first measurement, without a guess."""
        return sum(self.expected(trial) or 0.0 for trial in trials) if self._measured or self._guess else None


def measure(trials: Sequence[T], line: Line, pace: Pace, label: Callable[[T], str], one: Callable[[T, Callable[[], None]], str]) -> None:
    """Measure trials one after another; a line shows which, for how long, and the time left.

    Args:
        trials: what is left to measure.
        line: shows the trial under way; results stay above it.
        pace: of trials measured before.
        label: a trial for display.
        one: measures a trial, keeps its row and returns its result for display; calls its argument meanwhile.
    """
    for number, trial in enumerate(trials, 1):
        begun, expected = time.monotonic(), pace.left(trials[number - 1 :])

        def show(number: int = number, trial: T = trial, begun: float = begun, expected: float | None = expected) -> None:
            elapsed = time.monotonic() - begun
            left = f"; about {text.duration(expected - elapsed)} left" if expected is not None else ""
            line.update(f"{number} of {len(trials)}: {label(trial)}, {text.duration(elapsed)}{left}")

        result = one(trial, show)
        pace.add(trial, time.monotonic() - begun)
        line.print(f"  {number}/{len(trials)}  {result}")


@dataclass(frozen=True)
class UnderWay(Generic[T, S]):
    """A trial that runs."""

    trial: T
    slot: S
    begun: float

    @property
    def elapsed(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self.begun


def side_by_side(
    trials: Iterable[T],
    slots: Sequence[S],
    one: Callable[[T, S, Callable[[], bool]], U],
    done: Callable[[UnderWay[T, S], U], bool],
    meanwhile: Callable[[Sequence[UnderWay[T, S]]], None],
) -> None:
    """Run trials in order, as many at once as there are slots.

    Args:
        trials: what to run.
        slots: what a trial has for itself while it runs, such as hosts.
        one: runs a trial in a slot, in a thread of its own; gives up when its last argument returns true.
        done: takes a result, in the calling thread; returns whether to run that trial again.
        meanwhile: called a few times a second, in the calling thread, with the trials that run.

    Raises:
        Exception: the first that a trial raised; by then the others have been told to give up, and have ended.
    """
    waiting, free, given_up = deque(trials), deque(slots), threading.Event()
    running: dict[concurrent.futures.Future[U], UnderWay[T, S]] = {}
    with concurrent.futures.ThreadPoolExecutor(len(slots)) as pool:
        try:
            while waiting or running:
                while waiting and free:
                    job = UnderWay(waiting.popleft(), free.popleft(), time.monotonic())
                    running[pool.submit(one, job.trial, job.slot, given_up.is_set)] = job
                ended, _ = concurrent.futures.wait(running, LOOK_S, concurrent.futures.FIRST_COMPLETED)
                for future in ended:
                    job = running.pop(future)
                    free.appendleft(job.slot)
                    if done(job, future.result()):
                        waiting.appendleft(job.trial)
                if running:
                    meanwhile(list(running.values()))
        finally:
            given_up.set()


def check_name(variable: str, name: str, most: int = LONGEST_NAME) -> None:
    """Refuse a campaign's name that could leave its folder or reach a shell."""
    if len(name) > most or not NAME.fullmatch(name):
        raise ConfigError(f"{variable}={name}: a name is 1 to {most} of A-Z a-z 0-9 . _ - and starts with a letter or digit")


def refuse_other(variable: str, name: str, changed: Sequence[str], subject: str = "it") -> None:
    """Refuse to mix measurements of different conditions.

    Args:
        variable: of the command line, which names the campaign.
        name: of the campaign.
        changed: the conditions that differ, for display.
        subject: what was measured under other conditions.
    """
    if changed:
        raise ConfigError(
            f"{variable}={name}: {subject} was measured with another {', '.join(changed)}, and the two can't be compared; "
            f"measure under another name: -e {variable}={name[:30]}-2"
        )


def other_hosts(before: Sequence[Any], now: Sequence[Any]) -> list[str]:
    """The changed condition if the lists of hosts differ; one may be longer."""
    both = min(len(before), len(now))
    return ["list of hosts"] if before[:both] != now[:both] else []


@contextlib.contextmanager
def alone(lock: Path = LOCK) -> Iterator[None]:
    """Be the only measuring command: two at once would measure each other.

    Raises:
        LockstepError: another command is measuring.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockstepError(
                "another sweep or benchmark is measuring, and two at once would measure each other; wait for it, or end it"
            ) from None
        yield
