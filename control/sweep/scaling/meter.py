"""A metering plug that powers all hosts: its watts during a trial, as joules."""

import http.client
import itertools
import json
import math
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from trainer.common.errors import LockstepError

EVERY_S, PATIENCE_S = 1.0, 3.0
PATHS: tuple[tuple[str | int, ...], ...] = (
    ("apower",),
    ("meters", 0, "power"),
    ("StatusSNS", "ENERGY", "Power"),
    ("power",),
    ("watts",),
)
"""Paths of the watts in responses: Shelly plugs of the second and first generation, Tasmota, plain numbers."""

Sample = tuple[float, float]
"""Seconds since 1970 and watts."""


def watts(url: str) -> float:
    """The plug's current power.

    Raises:
        LockstepError: no answer, or an answer without watts.
    """
    if not url.startswith(("http://", "https://")):
        raise LockstepError(f"meter={url}: expected an address that begins with http:// or https://")
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:  # noqa: S310 - http and https only, checked above
            content = json.load(answer)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise LockstepError(f"meter={url}: no JSON answer ({reason}); open that address in a browser") from None
    for path in PATHS:
        power = _at(content, path)
        if isinstance(power, int | float) and not isinstance(power, bool) and math.isfinite(power):
            return float(power)
    paths = ", ".join(".".join(map(str, path)) for path in PATHS)
    raise LockstepError(f"meter={url}: no watts in its answer {json.dumps(content)[:200]}; looked for: {paths}")


def _at(value: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


@contextmanager
def metering(url: str | None) -> Iterator[list[Sample]]:
    """Yield a list that fills with samples until the block ends; it stays empty without a plug.

    A single failed request leaves a gap, which `joules` bridges.
    """
    samples: list[Sample] = []
    over = threading.Event()

    def sample() -> None:
        while not over.is_set():
            try:
                value = watts(str(url))
                samples.append((time.time(), value))
            except LockstepError:
                pass
            over.wait(EVERY_S)

    thread = threading.Thread(target=sample, daemon=True)
    if url:
        thread.start()
    try:
        yield samples
    finally:
        over.set()
        if url:
            thread.join(2 * PATIENCE_S)


def joules(samples: Sequence[Sample], begin: float, end: float) -> float:
    """Energy between two times in joules, by the trapezoidal rule; the first and last samples also count for times beyond them.

    Raises:
        LockstepError: too few samples for a figure: fewer than one in five seconds.
    """
    inside = [(at, value) for at, value in samples if begin <= at <= end]
    if len(inside) < max(2.0, (end - begin) / 5):
        raise LockstepError(f"the meter answered {len(inside)} times in {end - begin:.0f} s; expected at least one answer in 5 s")
    edged = [(begin, inside[0][1]), *inside, (end, inside[-1][1])]
    return sum((later - earlier) * (one + other) / 2 for (earlier, one), (later, other) in itertools.pairwise(edged))
