"""Lines on a run's records, shown while the run writes them."""

from collections.abc import Sequence
from typing import Any

from control.common import command_line
from control.common.progress_line import Line
from control.runs.results import metric_text, stragglers
from control.runs.show import result_text
from trainer.rundir.phases import Phase


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
        """Show records through `line`; `quiet` leaves out permanent lines, except warnings.

        `hosts`: names by rank; `called`: noun for an example; `asked`: `train.monitor`.
        """
        self._line, self._quiet, self._hosts = line, quiet, hosts
        self._progress, self.printed = result_text.RunProgress(counts, called, asked, command_line.columns()), list[int]()
        self._slow = ("", 0)
        """Cause and rank of the last named straggler."""

    def show(self, host: str, record: dict[str, Any]) -> None:
        """Show a record of that host's worker."""
        kind = record["kind"]
        if kind == "warning":
            self._line.print(f"{host}: {record['text']}")
        elif kind == "phase" and record["phase"] != Phase.TRAINING:
            self._line.update(f"{host}: {record['phase']} {record['note']}".rstrip())
        elif kind == "steps":
            self._line.update(self._progress.line(record))
        elif kind == "epoch" and not self._quiet:
            self._progress.end_epoch(record)
            self.printed.append(record["epoch"])
            for line in self._progress.epoch_lines():
                self._line.print(line)
        elif kind == "evaluation" and not self._quiet:
            self._line.print(f"{host}: {metric_text.evaluation(record)}")
        elif kind == "straggler" and not self._quiet:
            self._straggler(record)
        elif kind == "reduction" and not self._quiet:
            self._line.print(f"Gradients are sent {record['why']}.")
        elif kind == "shares" and not self._quiet:
            self._line.print(f"The global batch is divided: {record['told']}.")

    def _straggler(self, record: dict[str, Any]) -> None:
        """Name a straggler once, and again if the worker or the cause changes."""
        slow = (record["cause"], record["rank"])
        if slow != self._slow and (named := stragglers.sentence(record, self._hosts)):
            self._line.print(named)
        self._slow = slow
