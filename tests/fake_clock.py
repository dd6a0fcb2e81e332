"""Clocks for tests: one whose time passes only while all wait for it, and one that is in a hurry, for real processes.

On a `FakeClock` threads that wait, sleep, or look at sockets take turns with time: while one of them works, it stands still, and when all
wait, it jumps to the next deadline. So an hour is over at once, and a busy machine changes nothing. Connections are real: on loopback the
kernel delivers what was sent before the sender goes on.
"""

import asyncio
import contextlib
import functools
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from trainer.common.clock import Clock

LOOK_S = 0.001
"""Real seconds between two looks at whether somebody may go on."""
LONG_S = 3600.0
"""Seconds of a fake clock after which what a test waits for will not come."""
LEAVE_S = 5.0
"""Real seconds in which all threads may end after the test."""
STUCK_S = 60.0
"""Real seconds in which somebody works, and does not wait: then the test fails instead of standing still."""
BEGAN_AT, BEGAN = 1000.0, 1_000_000_000.0


class Hurried(Clock):
    """So many times as fast as the machine's clock: for processes of their own. What must not end early needs a limit to match."""

    def __init__(self, times: float):
        self._times = times

    def monotonic(self) -> float:
        return self._times * time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / self._times)

    def wait(self, event: Any, seconds: float) -> bool:
        return event.wait(seconds / self._times)

    def select(self, files: Any, seconds: float | None) -> list[Any]:
        return super().select(files, None if seconds is None else seconds / self._times)

    def signal(self, numbers: Collection[int], seconds: float) -> int | None:
        return super().signal(numbers, seconds / self._times)

    def run(self, main: Any) -> Any:
        return _run(self, main, lambda select, seconds: select(None if seconds is None else seconds / self._times))


class _Selector(selectors.DefaultSelector):
    """Waits as a clock does: by a function of its own `select` and seconds."""

    def __init__(self, wait: Callable[[Callable[[float | None], Any], float | None], Any]):
        super().__init__()
        self._wait = wait

    def select(self, timeout: float | None = None) -> Any:
        return self._wait(super().select, timeout)


def _run(clock: Clock, main: Any, wait: Callable[[Callable[[float | None], Any], float | None], Any]) -> Any:
    """Run a coroutine in an event loop with the time of a clock."""

    def loop() -> asyncio.AbstractEventLoop:
        made = asyncio.SelectorEventLoop(_Selector(wait))
        made.time = clock.monotonic
        return made

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main)


class _Waiter:
    """A thread that waits."""

    def __init__(self, ready: Callable[[], bool], until: float):
        self._ready, self.until, self.go = ready, until, threading.Event()

    def is_ready(self) -> bool:
        """Whether it may go on; it sees itself what it can't look at, such as a closed socket."""
        try:
            return self._ready()
        except Exception:
            return True


class FakeClock(Clock):
    """Time passes while the test's thread, and all that were started since, wait for it; or with `advance`."""

    def __init__(self) -> None:
        self._now, self._others = BEGAN_AT, set(threading.enumerate()) - {threading.current_thread()}
        self._lock = threading.Lock()
        self._waiting: dict[threading.Thread, _Waiter] = {}
        self._calls: dict[threading.Thread, list[Callable[[], None]]] = {}
        self._signals: dict[threading.Thread, list[int]] = {}
        self._over, self._stuck, self._news = False, "", threading.Event()
        self._guide = threading.Thread(target=self._guide_all, daemon=True)
        self._others.add(self._guide)
        self._guide.start()

    # --- as every clock

    def monotonic(self) -> float:
        return self._now

    def time(self) -> float:
        return BEGAN + self._now

    def sleep(self, seconds: float) -> None:
        self._await(lambda: False, seconds)

    def wait(self, event: threading.Event | threading.Condition, seconds: float) -> bool:
        if isinstance(event, threading.Event):
            return self._await(event.is_set, seconds)
        with _notified(event) as noted:
            return self._await(noted.is_set, seconds)

    def join(self, thread: threading.Thread) -> None:
        self._await(lambda: not thread.is_alive(), None)

    def select(self, files: Any, seconds: float | None) -> list[Any]:
        look = functools.partial(super().select, files, 0.0)
        self._await(lambda: bool(look()), seconds)
        return look()

    def signal(self, numbers: Collection[int], seconds: float) -> int | None:
        came = self._signals.setdefault(threading.current_thread(), [])
        self._await(lambda: any(number in numbers for number in came), seconds)
        number = next((one for one in came if one in numbers), None)
        if number is not None:
            came.remove(number)
        return number

    def run(self, main: Any) -> Any:
        ended = False

        def look(select: Callable[[float | None], Any], seconds: float | None) -> Any:
            nonlocal ended
            if not ended:
                try:
                    self._await(lambda: bool(select(0)), seconds)
                except SystemExit:
                    # From now on the loop cleans up.
                    ended = True
                    raise
            return select(0)

        return _run(self, main, look)

    # --- for tests

    def advance(self, seconds: float) -> None:
        """Let the seconds pass, whoever works meanwhile."""
        with self._lock:
            self._now += seconds

    def until(self, condition: Callable[[], Any], what: str, seconds: float = LONG_S) -> None:
        """Let time pass until a condition comes true; fail the test if it does not within these seconds."""
        assert self._await(lambda: bool(condition()), seconds), f"not within {seconds:.0f} s: {what}"

    def leave_out(self, thread: threading.Thread) -> None:
        """Let time pass whatever a thread does that is about to start."""
        self._others.add(thread)

    def together(self, *calls: Callable[[], Any]) -> list[Any]:
        """What functions return, or raise, each in a thread of its own."""
        outcomes: list[Any] = [None] * len(calls)

        def one(number: int) -> None:
            try:
                outcomes[number] = calls[number]()
            except Exception as error:
                outcomes[number] = error

        threads = [threading.Thread(target=one, args=[number], daemon=True) for number in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            self.join(thread)
        return outcomes

    def handle(self, thread: threading.Thread, call: Callable[[], None]) -> None:
        """Call a function in a thread that waits, as the kernel does with a handler of a signal; it may raise."""
        with self._lock:
            self._calls.setdefault(thread, []).append(call)

    def send(self, thread: threading.Thread, number: int) -> None:
        """Let a blocked signal come to a thread."""
        self._signals.setdefault(thread, []).append(number)

    def close(self) -> None:
        """End all threads that wait, with SystemExit, and those that they start."""
        self._over = True
        self._guide.join()
        deadline = time.monotonic() + LEAVE_S
        while {*threading.enumerate()} - self._others - {threading.current_thread()} and time.monotonic() < deadline:
            with self._lock:
                for waiter in self._waiting.values():
                    waiter.go.set()
            time.sleep(LOOK_S)

    # --- who goes on

    def _await(self, ready: Callable[[], bool], seconds: float | None) -> bool:
        thread = threading.current_thread()
        until = float("inf") if seconds is None else self._now + max(0.0, seconds)
        while True:
            if self._over:
                raise SystemExit
            while calls := self._calls.get(thread):
                calls.pop(0)()
            if ready():
                return True
            if self._now >= until:
                return False
            assert not self._stuck or thread is not threading.main_thread(), f"time stands still: {self._stuck}"
            waiter = _Waiter(ready, until)
            with self._lock:
                self._waiting[thread] = waiter
            self._news.set()
            if not self._over:
                waiter.go.wait()

    def _guide_all(self) -> None:
        """Let those go on that may; when nobody can, the next deadline comes."""
        idle, since = False, time.monotonic()
        while not self._over:
            with self._lock:
                went, all_wait = self._let_go(), self._all_wait()
                if all_wait and idle and not went and not self._jump():
                    self._fail("all wait for ever")
            # A second look before a jump: what was sent may just have arrived.
            idle = all_wait and not went
            since = since if not all_wait and not went else time.monotonic()
            if time.monotonic() - since > STUCK_S:
                busy = [one.name for one in threading.enumerate() if one not in self._others and one not in self._waiting]
                with self._lock:
                    self._fail(f"busy for {STUCK_S:.0f} s: {busy}")
            if not went and not idle:
                self._news.wait(LOOK_S)
                self._news.clear()

    def _let_go(self) -> bool:
        going = [one for one, waiter in self._waiting.items() if self._calls.get(one) or waiter.until <= self._now or waiter.is_ready()]
        for thread in going:
            self._waiting.pop(thread).go.set()
        return bool(going)

    def _all_wait(self) -> bool:
        return all(one in self._waiting or one in self._others for one in threading.enumerate())

    def _jump(self) -> bool:
        until = min((waiter.until for waiter in self._waiting.values()), default=float("inf"))
        if until == float("inf"):
            return False
        self._now = until
        return True

    def _fail(self, why: str) -> None:
        self._stuck = why
        if waiter := self._waiting.pop(threading.main_thread(), None):
            waiter.go.set()


@contextlib.contextmanager
def _notified(condition: threading.Condition) -> Iterator[threading.Event]:
    """Release a condition's lock meanwhile; the event is set by its next notification."""
    noted = threading.Event()

    class Waiting:
        release = noted.set

    condition._waiters.append(Waiting)
    condition.release()
    try:
        yield noted
    finally:
        condition.acquire()
        with contextlib.suppress(ValueError):
            condition._waiters.remove(Waiting)


class FakeProcess:
    """What stands in for a child process, as `subprocess.Popen` has it: it lives until it is ended."""

    def __init__(self, clock: FakeClock, pid: int = 1):
        self._clock, self.pid = clock, pid
        self._ended, self.returncode = threading.Event(), None
        self.signals: list[int] = []

    def end(self, code: int) -> None:
        """End with an exit code; negative for a signal."""
        if self.returncode is None:
            self.returncode = code
            self._ended.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._clock.wait(self._ended, float("inf") if timeout is None else timeout):
            raise subprocess.TimeoutExpired("worker", timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Take a signal as a program without handlers does, except those that it ignores."""
        self.signals.append(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.end(-number)
