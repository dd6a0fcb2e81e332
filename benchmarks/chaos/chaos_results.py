"""The table and the picture of `benchmarks/chaos.yml`."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.chaos.injection import STAGES, Row
from control.common import text
from control.common.plotting import picture

GOAL_S, WORST_S = 30, 90
COLOUR = "#0b4f8a"


class Report:
    """The faults of all rounds that have ended."""

    def __init__(self, rows: Sequence[Row]):
        """Take at least one row."""
        self._rows = rows
        self._restarted = [row for row in rows if row.notice_s is not None]

    def by_fault(self) -> list[dict[str, Any]]:
        """Every fault over its rounds; seconds are medians, None where nothing was noticed or followed."""
        return [_of(name, [row for row in self._rows if row.fault == name]) for name in dict.fromkeys(row.fault for row in self._rows)]

    def text(self) -> str:
        """A row for each fault, parts of the time from a fault to the next step, the goals and whether they are reached."""
        header = ["fault", "times", "restarts", "noticed s", "next step s", "worst s", "steps repeated", "weights equal"]
        cells = [[_s(cell) if isinstance(cell, float | None) else cell for cell in one.values()] for one in self.by_fault()]
        columns = {"notice": "notice_s", **{stage: f"{stage.replace(' ', '_')}_s" for stage in STAGES}}
        parts = [_s(_middle(getattr(row, field) for row in self._restarted)) for field in columns.values()]
        restarts = text.table(["of a restart, s", *columns], [["median", *parts]])
        return f"{text.table(header, cells)}\n\n{restarts}\n\n{self._sentence()}"

    def _sentence(self) -> str:
        rows, after = self._rows, [row.next_step_s for row in self._restarted if row.next_step_s is not None]
        lost = sum(row.next_step_s is None for row in rows)
        times = f"fault to next step: median {statistics.median(after):.1f} s, worst {max(after):.1f} s" if after else "no restart"
        equal = sum(row.equal is True for row in rows)
        kinds = f"{text.count(len(rows), 'fault')} of {len({row.fault for row in rows})} kinds"
        return f"{kinds}; weights equal after {equal}; without a further step: {lost}; {times} (goals: {GOAL_S} and {WORST_S} s)"

    def draw(self, path: Path) -> None:
        """A line per fault: seconds to the next step, filled where workers started again, hollow where they did not have to."""
        names = list(dict.fromkeys(row.fault for row in sorted(self._rows, key=lambda row: row.next_step_s or 0.0)))
        with picture(path, 1.2 + 0.3 * len(names), 8.0) as figure:
            axes = figure.subplots()
            for row in self._rows:
                if row.next_step_s:
                    style = "none" if row.notice_s is None else "full"
                    axes.plot([row.next_step_s], [names.index(row.fault)], "o", color=COLOUR, fillstyle=style)
            for limit, words in ((GOAL_S, "goal of the median"), (WORST_S, "goal of the worst")):
                axes.axvline(limit, color="#a33a00", linestyle="--", linewidth=1)
                axes.annotate(words, (limit, len(names) - 0.4), fontsize=8, ha="center", annotation_clip=False)
            axes.set(xlabel="seconds to the next training step (filled: workers started again)", ylim=(-0.6, len(names) - 0.4))
            axes.set_xlim(left=0)
            axes.set_yticks(range(len(names)), names)


def _of(name: str, rows: Sequence[Row]) -> dict[str, Any]:
    following = [row.next_step_s for row in rows if row.next_step_s is not None]
    return {
        "fault": name,
        "times": len(rows),
        "restarts": sum(row.notice_s is not None for row in rows),
        "notice_s": _middle(row.notice_s for row in rows),
        "next_step_s": _middle(following),
        "worst_s": max(following, default=None),
        "repeated": round(statistics.median(row.repeated for row in rows)),
        "equal": sum(row.equal is True for row in rows),
    }


def _middle(values: Iterable[float | None]) -> float | None:
    """The median of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _s(seconds: float | None) -> text.Number | str:
    return "-" if seconds is None else text.Number(seconds, 1)
