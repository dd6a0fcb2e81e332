"""Numbers in a report's sentences. Pure functions."""

import datetime
from typing import Any


def percent(share: float) -> str:
    """`0.58561` as `58.56%`."""
    return f"{share:.2%}"


def points(difference: float) -> str:
    """A difference of two shares in percentage points: `0.0104` as `1.04 points`."""
    return f"{abs(difference) * 100:.2f} points"


def spent(seconds: float) -> str:
    """`95 s`, `3 min 2 s`, `1 h 12 min`."""
    rounded = int(seconds + 0.5)
    if rounded < 120:
        return f"{rounded} s"
    minutes, rest = divmod(rounded, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def moment(iso: str) -> str:
    """`2026-11-21T05:26:16+00:00` as `2026-11-21 05:26 UTC`."""
    return datetime.datetime.fromisoformat(iso).astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def code(value: Any) -> str:
    """A name or a command, set as code in every form of the report."""
    return "`" + str(value).replace("`", "'").replace("\n", " ") + "`"


def plain(value: Any) -> str:
    """A foreign name in a sentence: its backticks do not begin code."""
    return str(value).replace("`", "'")


def moved(first: float, last: float) -> str:
    """The verb for a change from first to last, to two decimals of a percentage."""
    if percent(first) == percent(last):
        return "stayed"
    return "rose" if last > first else "fell"
