"""Something that is done again and again beside other work."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from trainer.clock import CLOCK, Clock


@contextlib.contextmanager
def repeating(seconds: float, call: Callable[[], object], clock: Clock = CLOCK) -> Iterator[None]:
    """Call a function every so many seconds, in a thread, for as long as the context lasts, or until the function raises."""
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
