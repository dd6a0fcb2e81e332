"""evaluations.csv of a run: its metrics on the test examples."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.common.files import write_rows, write_text

FIRST, LAST = ("epoch", "split"), ("images", "seconds", "evaluated_at")
"""First and last columns of the table; the model's metrics are between them."""


@dataclass(frozen=True)
class EvaluationTable:
    """The file evaluations.csv, complete at all times; it may be missing."""

    path: Path

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        """Columns and rows, in order."""
        if not self.path.is_file():
            return [], []
        with self.path.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            return list(reader.fieldnames or ()), list(reader)

    def read_columns(self) -> tuple[list[str], set[tuple[int, str]]]:
        """Columns with their values, including epochs and times."""
        columns, rows = self._read()
        return columns, {(int(row["epoch"]), row["evaluated_at"]) for row in rows}

    @property
    def metrics(self) -> dict[int, dict[str, float]]:
        """Metrics by epoch, from the latest evaluation of each on the test examples."""
        tests = [row for row in self._read()[1] if row["split"] == "test"]
        return {int(row["epoch"]): {name: float(row[name]) for name in row if name not in (*FIRST, *LAST) and row[name]} for row in tests}

    @property
    def accuracies(self) -> dict[int, float]:
        """Accuracy by epoch, from the latest evaluation of each on the test examples; empty if the model has none."""
        return {epoch: metrics["accuracy"] for epoch, metrics in self.metrics.items() if "accuracy" in metrics}

    def append(self, evaluations: Sequence[dict[str, Any]]) -> None:
        """Append one row per evaluation, in order."""
        _, before = self._read()
        # A metric that is not finite is left out of its row.
        columns = dict.fromkeys([*(name for row in before for name in row), *(name for row in evaluations for name in row["metrics"])])
        names = [*FIRST, *(name for name in columns if name not in (*FIRST, *LAST)), *LAST]
        new = [{name: value for name, value in {**row, **row["metrics"]}.items() if name in names} for row in evaluations]
        write_rows(self.path, names, [*before, *new])

    def forget(self, after: int) -> None:
        """Drop evaluations of epochs after `after`: these epochs are trained again, and their snapshots are written again."""
        if self.path.is_file():
            header, *lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if not (epoch := line.partition(",")[0]).isdecimal() or int(epoch) <= after]
            if len(kept) < len(lines):
                write_text(self.path, "".join([header, *kept]))
