"""Progress for the user: a redrawn line, the time left, a run's records as lines."""

import time
from collections.abc import Sequence
from typing import Any

from ansible.utils.display import Display

from control import command_line, text
from control.runs import stragglers
from control.terminal_lines import cut, printable_lines
from trainer.common.safe_text import printable

WIDTH = 80


class Line:
    """One progress line, redrawn on a terminal and printed rarely elsewhere; Ansible's Display reaches the main process."""

    def __init__(self, display: Any = None, terminal: bool | None = None, every: float = 5.0):
        """Redraw on a `terminal` (default: the user's, if it is one); otherwise print a line every `every` seconds."""
        self._display, self._every = display or Display(), every
        self._terminal = command_line.terminal() if terminal is None else terminal
        self._drawn, self._last = False, time.monotonic()

    def update(self, line: str) -> None:
        """Show the latest state."""
        if self._terminal:
            width = (command_line.columns() or WIDTH) - 1
            self._display.display(f"\r\x1b[2K{cut(printable(line), width)}", newline=False)
            self._drawn = True
        elif time.monotonic() - self._last >= self._every:
            self._display.display(printable(line))
            self._last = time.monotonic()

    def print(self, line: str) -> None:
        """Print a line that stays."""
        self.end()
        self._display.display(printable_lines(line))
        self._last = time.monotonic()

    def end(self) -> None:
        """Remove the redrawn line."""
        if self._drawn:
            self._display.display("\r\x1b[2K", newline=False)
            self._drawn = False


class Estimate:
    """Time left, from finished epochs (validation and saving included) or the current speed."""

    def __init__(self, counts: dict[str, Any]):
        """Sizes of the run, as in the plan."""
        self._counts = counts
        self._epochs: list[tuple[float, int]] = []

    def epoch(self, at: float, epoch: int) -> None:
        """Record when an epoch ended."""
        self._epochs.append((at, epoch))

    def left(self, step: int, images_per_s: float) -> float | None:
        """Seconds left after `step`."""
        steps = self._counts["total_steps"] - step
        if len(self._epochs) >= 2:
            (first, start), (last, end) = self._epochs[0], self._epochs[-1]
            return (last - first) / ((end - start) * self._counts["steps_per_epoch"]) * steps
        return steps * self._counts["global_batch"] / images_per_s if images_per_s else None


class Progress:
    """Shows a run's records of metrics.jsonl."""

    def __init__(
        self,
        line: Line,
        counts: dict[str, Any],
        quiet: bool = False,
        hosts: Sequence[str] = (),
        called: str = "image",
        asked: str | None = None,
    ):
        """Show them through `line`; `quiet` leaves out the lines that stay, except warnings.

        `hosts`: names by rank; `called`: what an example is called; `asked`: `train.monitor`.
        """
        self._line, self._counts, self._quiet, self._hosts, self._called = line, counts, quiet, hosts, called
        self._asked = asked
        self._table, self.printed = text.EpochTable(counts.get("epochs", 0), called, command_line.columns()), list[int]()
        self._slow = ("", 0)
        """Cause and rank of the straggler that was named last."""
        self._estimate = Estimate(counts)
        self._last_epoch: dict[str, Any] | None = None

    def show(self, host: str, record: dict[str, Any]) -> None:
        """Show a record of that host's worker."""
        kind = record["kind"]
        if kind == "warning":
            self._line.print(f"{host}: {record['text']}")
        elif kind == "phase" and record["phase"] != "training":
            self._line.update(f"{host}: {record['phase']} {record['note']}".rstrip())
        elif kind == "steps":
            left = self._estimate.left(record["step"], record["images_per_s"])
            self._line.update(text.progress(record, self._counts, self._last_epoch, left, self._called, self._asked))
        elif kind == "epoch" and not self._quiet:
            self._last_epoch = record
            self._estimate.epoch(record["t"], record["epoch"])
            left = self._estimate.left(record["epoch"] * self._counts["steps_per_epoch"], record["images_per_s"])
            self.printed.append(record["epoch"])
            for line in self._table.lines(record, left):
                self._line.print(line)
        elif kind == "evaluation" and not self._quiet:
            self._line.print(f"{host}: {text.evaluation(record)}")
        elif kind == "straggler" and not self._quiet:
            self._straggler(record)
        elif kind == "reduction" and not self._quiet:
            self._line.print(f"Gradients are sent {record['why']}.")
        elif kind == "shares" and not self._quiet:
            self._line.print(f"The global batch is divided: {record['told']}.")

    def _straggler(self, record: dict[str, Any]) -> None:
        """Name a straggler once, and again when it is another or has another cause."""
        slow = (record["cause"], record["rank"])
        if slow != self._slow and (named := stragglers.sentence(record, self._hosts)):
            self._line.print(named)
        self._slow = slow
