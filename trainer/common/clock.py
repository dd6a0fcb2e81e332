"""Time as whatever waits sees it: a parameter, so that a test can let hours pass at once.

Standard library only: supervisors wait, too.
"""

import contextlib
import select
import signal
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Clock:
    """The machine's time. A subclass that passes differently replaces every method that waits."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never set back."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Let the seconds pass."""
        time.sleep(seconds)

    def wait(self, event: threading.Event | threading.Condition, seconds: float) -> bool:
        """Wait for an event, or for a notification of a condition whose lock is held; False once the seconds have passed without."""
        return event.wait(seconds)

    def join(self, thread: threading.Thread) -> None:
        """Wait for the end of a thread."""
        thread.join()

    def select(self, files: Sequence[Any], seconds: float | None) -> list[Any]:
        """Return the files and sockets that can be read; none once the seconds have passed without. None: no limit."""
        poll = select.poll()
        for file in files:
            poll.register(file, select.POLLIN)
        there = {number for number, _ in poll.poll(None if seconds is None else 1000 * seconds)}
        return [file for file in files if file.fileno() in there]

    def signal(self, numbers: Collection[int], seconds: float) -> int | None:
        """The next of some blocked signals; None once the seconds have passed without."""
        came = signal.sigtimedwait(numbers, seconds)
        return came.si_signo if came else None

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, in an event loop with this time."""
        # A watching command needs none.
        import asyncio

        return asyncio.run(main)


CLOCK = Clock()


@contextlib.contextmanager
def repeating(seconds: float, call: Callable[[], object], clock: Clock = CLOCK) -> Iterator[None]:
    """Call a function every `seconds`, in a thread, for as long as the context lasts, or until the function raises."""
    over = threading.Event()

    def repeat() -> None:
        while not clock.wait(over, seconds):
            call()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        clock.join(thread)
