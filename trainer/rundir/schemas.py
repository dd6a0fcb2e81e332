"""Names in a worker's records: columns of history.csv, parts of a step; see `control.remote.worker_files` for what readers check."""

import csv
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsFloat

from trainer.common.errors import LockstepError
from trainer.common.safe_text import printable
from trainer.rundir.best_epoch import RESTORED

EPOCH_COLUMNS = ("epoch", "learning_rate", "seconds", "images_per_s")
"""Columns of every history.csv; the others are the model's metrics, and with a prefix those on the validation examples."""
VALIDATION = "val_"
PHASES = ("input", "forward_backward", "compression", "all_reduce", "apply")
"""The parts of a step, in order."""
STRAGGLER = ("own_us", "others_us", "value", "usual")
"""Numbers of the record of a straggler: see `straggler.Straggler`."""
HEADER = "=== launch "
"""Prefix of the line that starts each launch's part of worker.log."""
LARGEST = 1e30
MOST_MISTAKES, LARGEST_SIDE = 24, 64
"""Pictures of wrongly classified examples that are kept of an output, and pixels of a side; larger ones are scaled down."""


def read_history(path: Path) -> list[dict[str, Any]]:
    """Rows of a history.csv as numbers, none if there is no file; LockstepError if a row is invalid."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="", errors="replace") as stream:
        try:
            return [_row(row) for row in csv.DictReader(stream)]
        except (ValueError, TypeError, csv.Error) as error:
            raise LockstepError(f"{path.name}: not what a worker writes: {printable(error, 200)}") from None


def metric_values(row: Mapping[str, float]) -> dict[str, float]:
    """The metrics in a row of history.csv."""
    return {name: value for name, value in row.items() if name not in (*EPOCH_COLUMNS, RESTORED, "t", "kind")}


def numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """Logs of Keras as numbers: of a metric with several results, their mean; what is no number is left out."""
    means = {name: value.mean() if hasattr(value, "mean") else value for name, value in logs.items()}
    return {name: float(value) for name, value in means.items() if isinstance(value, SupportsFloat)}


def rounded(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics for a file, with all their digits, without those that are no number: a ratio of sums may be 0/0."""
    return {name: _shortest(value) for name, value in metrics.items() if math.isfinite(value)}


def _shortest(value: float) -> float:
    """The number with the fewest digits that is the same one as float32, if `value` is a float32; else itself."""
    try:
        packed = struct.pack("f", value)
    except OverflowError:
        return value
    digits = (float(f"{value:.{count}g}") for count in range(6, 10))
    return next(one for one in digits if struct.pack("f", one) == packed) if struct.unpack("f", packed)[0] == value else value


def _row(row: dict[str, Any]) -> dict[str, Any]:
    values = {key: int(value) if key == "epoch" else float(value) for key, value in row.items() if value != ""}
    missing = [key for key in EPOCH_COLUMNS if key not in values]
    if missing or not all(math.isfinite(value) and abs(value) <= LARGEST for value in values.values()):
        raise ValueError(f"a row without {missing[0]}" if missing else f"row of epoch {values['epoch']}: a value is no number")
    return values
