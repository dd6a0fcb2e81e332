"""The epochs of a run that a benchmark times: all but the first, which warms up."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.rundir.schemas import read_history


def timed(run: Path) -> list[dict[str, Any]]:
    """Rows of history.csv; empty for a run of one epoch."""
    return read_history(run / "history.csv")[1:]


def images_per_s(rows: Sequence[dict[str, Any]]) -> float:
    """images/s over epochs, at least one, each of which has as many images."""
    return statistics.harmonic_mean(row["images_per_s"] for row in rows)
