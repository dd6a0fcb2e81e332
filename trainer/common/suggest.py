"""Hints for a mistyped name."""

import difflib
import itertools
import typing

MOST_COMPARED = 5000
"""Names among which the nearest is looked for: a table may have any number of columns, and comparing one takes 10 us."""


def nearest(name: str, candidates: typing.Iterable[str], prefix: str = "") -> str:
    """A hint ` (did you mean X?)` when a candidate is close to `name`, else an empty string; X is shown with `prefix`, which all share."""
    close = difflib.get_close_matches(str(name), itertools.islice(candidates, MOST_COMPARED), n=1, cutoff=0.5)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""
