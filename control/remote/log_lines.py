"""Lines of worker.log for a user: those of the current launch, without TensorFlow's start-up noise. Pure functions."""

import re
from collections.abc import Iterable, Sequence

from trainer.common.safe_text import printable
from trainer.rundir.schemas import HEADER

NOISE = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    # Errors and fatal messages stay, and warnings except those of every start without a GPU.
    r"|I\d{4} \d\d:\d\d:\d+\.\d+ +\d+ [\w./-]+:\d+\] .*"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: I [\w./-]+:\d+\] .*"
    r"|.*\] (Unable to register cu\w+ factory: .*|Could not find cuda drivers on your machine, GPU will not be used\.)"
    r"|To enable the following instructions: .*, in other operations, rebuild TensorFlow with the appropriate compiler flags\."
)

COLOR = re.compile(r"\x1b\[[0-9;]*m")
"""Colours and bold letters, as of Keras' progress bar."""


def of_last_launch(lines: Sequence[str]) -> list[str]:
    """Lines from the last header on; all lines if there is none."""
    begin = max((number for number, line in enumerate(lines) if line.startswith(HEADER)), default=0)
    return list(lines[begin:])


def readable_lines(lines: Iterable[str]) -> list[str]:
    """Lines without noise and colours, fit for a terminal; the file keeps every line."""
    # A line that is redrawn, as by a progress bar, keeps its last state.
    kept = (COLOR.sub("", line.rstrip("\r").rpartition("\r")[2]) for line in lines if not NOISE.fullmatch(line.rstrip("\r")))
    *first, last = [printable(line) for line in kept] or [""]
    return [*first, last] if last else first
