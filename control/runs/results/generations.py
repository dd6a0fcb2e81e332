"""Shared state of the watchers of an elastic run's hosts, which are separate processes: files in a folder.

After a fault, workers start again as another generation, whose chief may be on another host. No host alone decides who is chief:
as many hosts must agree as may go on without the rest.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.common import project
from trainer.common.files import read_json, write_json
from trainer.supervision.restart_policy import may_go_on

OVER = "over"


@dataclass(frozen=True)
class Generations:
    """The marks of one run's watchers."""

    folder: Path

    @classmethod
    def of_run(cls, run: str) -> "Generations":
        """The marks of a run, by its name."""
        return cls(project.PRIVATE / "watch" / run)

    def note(self, host: str, record: Mapping[str, Any]) -> None:
        """Mark the newest generation of a host's worker: its record."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / f"generation-{host}", {"number": record["number"], "chief": (record["hosts"] or [""])[0]})

    def chief(self, launched: Sequence[str], workers: int) -> str:
        """The host of the chief; empty while that is unclear.

        Args:
            launched: names of the launch's hosts, by rank, its spares last.
            workers: how many of them are no spares.
        """
        marks = [self._mark(host) for host in launched]
        for number, name in sorted({one for one in marks if one[0] > 0}, reverse=True):
            if name in launched and may_go_on([rank for rank, one in enumerate(marks) if one == (number, name)], workers, 1):
                return name
        return launched[0] if all(number <= 1 for number, _ in marks) else ""

    def _mark(self, host: str) -> tuple[int, str]:
        with contextlib.suppress(FileNotFoundError):
            mark = read_json(self.folder / f"generation-{host}")
            return mark["number"], mark["chief"]
        return 0, ""

    def note_end(self) -> None:
        """Mark that the run has come to its end."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / OVER).touch()

    def is_over(self, seconds: float = 0.0) -> bool:
        """Return whether the run ended, at least `seconds` ago: nobody needs to wait for a lost host any more."""
        with contextlib.suppress(FileNotFoundError):
            return time.time() - (self.folder / OVER).stat().st_mtime >= seconds
        return False
