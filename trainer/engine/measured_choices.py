"""Measurements for a model on a set of hosts, kept until the user requests new ones.

Two measurements may disagree, especially on a busy machine, and another reduction or another division of a step's images
leads to other weights. Therefore the control node keeps the first run's measurements and passes them to later runs in their record.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.common.files import read_json
from trainer.config.schema import Reduction
from trainer.network.member import one_machine

SENT = {"packed": "as they are", "half": "in 16 bits", "powersgd": "compressed (PowerSGD)"}
METHODS = ("packed", "powersgd")
"""The methods that `auto` may choose."""
RECORDS = ("cluster.json", "run.json")
"""File names of the record, in runs of train.yml and in Slurm jobs."""


@dataclass(frozen=True)
class EarlierChoice:
    """An earlier choice."""

    method: str | None = None
    """`packed` or `powersgd`; None if not measured."""
    shares: list[int] | None = None
    """Each worker's share of a step, by rank; None if not measured."""
    origin: str = ""
    """Date and run of the measurement, as `measured 2026-11-23 by run r`."""

    @classmethod
    def of_run(cls, run: Path) -> "EarlierChoice":
        """Read the choice in a run's record; empty if it is missing or invalid."""
        stored = next((read_json(run / name).get("kept") for name in RECORDS if (run / name).is_file()), None)
        return cls.parse(stored)

    @classmethod
    def parse(cls, stored: Any) -> "EarlierChoice":
        """Parse the entry `kept` of a record."""
        if not isinstance(stored, dict):
            return cls()
        method, shares = stored.get("method"), stored.get("shares")
        sound = isinstance(shares, list) and all(type(share) is int and share > 0 for share in shares)
        return cls(method if method in METHODS else None, shares if sound else None, str(stored.get("told", "")))


def unmeasured(
    asked: Reduction, addresses: Sequence[str], before: str | None, kept: EarlierChoice | None, scaled: bool = False
) -> tuple[str, str] | None:
    """The method for several workers, with the reason; None if it must be measured.

    `addresses` have no ports; `before` is the method with which a resumed run began, `kept` the measurements of an earlier run. `scaled`:
    the optimizer scales the loss. Then PowerSGD's memory of one step has the wrong scale in the next, and stays infinite after an overflow.
    """
    if asked.name != "auto":
        return asked.name, "as configured"
    if scaled:
        return "packed", "the optimizer scales the loss by a factor that changes"
    if before:
        return before, "as when the run began"
    if one_machine(addresses):
        return "packed", "all workers are on this one machine"
    if kept and kept.method:
        return kept.method, kept.origin
    return None
