"""Attributes of foreign objects, and settings of the process, replaced for a while."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of an object or a class for a while."""
    own = name in vars(owner) or isinstance(getattr(type(owner), name, None), property)
    before = getattr(owner, name, None)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


class ProcessWide:
    """A setting of the process that has a value while any thread is inside: workers may be threads."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], Any], value: Any):
        """Leave it as it is."""
        self._read, self._write, self._value = read, write, value
        self._inside, self._lock, self._before = 0, threading.Lock(), None

    def __enter__(self) -> None:
        """The first thread sets it."""
        with self._lock:
            if not self._inside:
                self._before = self._read()
                self._write(self._value)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        """The last thread puts it back."""
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._write(self._before)
