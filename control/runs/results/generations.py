"""Shared state of the watchers of an elastic run's hosts, which are separate processes: files in a folder.

After a fault, workers start again as another generation, whose chief may be on another host. No host alone decides who is chief:
as many hosts must agree as may go on without the rest.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.common.files import read_json, write_json
from trainer.supervision.restart_policy import may_go_on

OVER = "over"


def note(folder: Path, host: str, record: Mapping[str, Any]) -> None:
    """Tell the others the newest generation of a host's worker: its record."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"generation-{host}", {"number": record["number"], "chief": (record["hosts"] or [""])[0]})


def chief(folder: Path, launched: Sequence[str], workers: int) -> str:
    """The host of the chief; empty while that is unclear.

    Args:
        folder: of the marks.
        launched: names of the launch's hosts, by rank, its spares last.
        workers: how many of them are no spares.
    """
    marks = [_mark(folder, host) for host in launched]
    for number, name in sorted({one for one in marks if one[0] > 0}, reverse=True):
        if name in launched and may_go_on([rank for rank, one in enumerate(marks) if one == (number, name)], workers, 1):
            return name
    return launched[0] if all(number <= 1 for number, _ in marks) else ""


def _mark(folder: Path, host: str) -> tuple[int, str]:
    with contextlib.suppress(FileNotFoundError):
        mark = read_json(folder / f"generation-{host}")
        return mark["number"], mark["chief"]
    return 0, ""


def note_end(folder: Path) -> None:
    """Tell the others that the run has come to its end."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / OVER).touch()


def is_over(folder: Path, seconds: float = 0.0) -> bool:
    """Return whether the run ended, at least `seconds` ago: nobody needs to wait for a lost host any more."""
    with contextlib.suppress(FileNotFoundError):
        return time.time() - (folder / OVER).stat().st_mtime >= seconds
    return False
