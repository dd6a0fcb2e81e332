"""Kernel limits of this process: raised where needed, lowered where input from outside decides how much it takes."""

import contextlib
import resource
from collections.abc import Iterator


def allow(kind: int, wanted: int) -> int:
    """Raise a soft limit to `wanted`, or as far as the system lets this process; how much it may have now is at least that.

    Args:
        kind: `resource.RLIMIT_NOFILE`, for example.
        wanted: in the limit's unit.

    Returns:
        `wanted`, or the hard limit where that is lower.
    """
    soft, hard = resource.getrlimit(kind)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(kind, (allowed, hard))
    return allowed


@contextlib.contextmanager
def at_most(kind: int, most: int) -> Iterator[None]:
    """Lower a soft limit meanwhile, unless it is lower already."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (min(one for one in (soft, hard, most) if one != resource.RLIM_INFINITY), hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))
