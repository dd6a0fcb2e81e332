"""Attributes of foreign objects, replaced for a while."""

import contextlib
from collections.abc import Iterator
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
