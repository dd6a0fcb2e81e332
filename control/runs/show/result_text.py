"""A run for the terminal: its progress, the table of its epochs, and the result at the command's end."""

import datetime
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from control.common import command_line
from control.common.project import relative
from control.common.text import Number, count, duration, fields, listed, next_commands, table
from control.runs.results import expected_speed, mlflow_log
from control.runs.results.metric_text import MOST_METRICS, best, metric_name
from control.runs.results.next_steps import after_run
from control.runs.results.run_folder import RunFolder
from control.runs.results.summary import Summary
from control.runs.show import parameter_server_text
from trainer.rundir.best_epoch import best_row, monitor
from trainer.rundir.schemas import VALIDATION, metric_values

MOST_COLUMNS = 8
"""Most metrics in a table."""

NARROWEST = 7
"""Least width of a column in the table of epochs, characters: later rows are unknown when the first is printed."""
SHOWN_FILES = 10
FAIR_STEPS = 100
"""Fewest steps of a run that is compared with a prediction: shorter runs are mostly start-up."""


class RunProgress:
    """The progress of a run: a line while it trains, and the table of epochs, printed row by row."""

    def __init__(self, counts: dict[str, Any], called: str = "image", asked: str | None = None, width: int | None = None):
        """Take the run's sizes from the plan.

        `called`: noun for an example; `asked`: `train.monitor`; `width`: columns of the terminal, beyond which metrics are left out.
        """
        self._counts, self._called, self._asked, self._width = counts, called, asked, width
        self._ended: list[dict[str, Any]] = []
        self._names: list[str] | None = None

    def end_epoch(self, record: dict[str, Any]) -> None:
        """Take the record of a finished epoch."""
        self._ended.append(record)

    def left(self, step: int, images_per_s: float) -> float | None:
        """Seconds left after `step`, from finished epochs (validation and saving included) or the current speed."""
        steps = self._counts["total_steps"] - step
        # A run that starts again may train its first epoch twice.
        if self._ended and (epochs := self._ended[-1]["epoch"] - self._ended[0]["epoch"]) > 0:
            seconds = self._ended[-1]["t"] - self._ended[0]["t"]
            return float(seconds / (epochs * self._counts["steps_per_epoch"]) * steps)
        return steps * self._counts["global_batch"] / images_per_s if images_per_s else None

    def line(self, record: dict[str, Any]) -> str:
        """One line: epoch, step, examples per second, time left, metrics, and the last epoch's deciding validation metric."""
        metrics, last = record["metrics"], metric_values(self._ended[-1]) if self._ended else {}
        decides = monitor(last or [VALIDATION + name for name in metrics], self._asked).metric
        value = f"{last[decides]:.4f}" if decides in last else "-"
        named = list(metrics.items())[:MOST_METRICS]
        shown = "".join(f"  {metric_name(name)} {value:.4f}" for name, value in named)
        # A model without validation is judged by a metric of training.
        decisive = "" if decides in dict(named) else f"  {metric_name(decides)} {value}"
        return (
            f"epoch {record['epoch']}/{self._counts['epochs']}  step {record['step']:,}/{self._counts['total_steps']:,}  "
            f"{record['images_per_s']:,.0f} {self._called}s/s  ETA {self._left(record['step'], record)}{shown}{decisive}"
        )

    def epoch_lines(self) -> list[str]:
        """The row of the last finished epoch, below a header if its columns are new."""
        row, last = self._ended[-1], [*_rates(self._called), "left"]
        names, before = _fitting(list(metric_values(row))[:MOST_COLUMNS], ["epoch", *last], self._width), self._names
        self._names = names
        columns = ["epoch", *map(metric_name, names), *last]
        left = self._left(row["epoch"] * self._counts["steps_per_epoch"], row)
        cells = [f"{row['epoch']}/{self._counts['epochs']}", *_numbers(row, names), left]
        shown = [cells] if names == before else [columns, cells]
        widths = [max(NARROWEST, len(title)) for title in columns]
        return ["  " + "  ".join(str(cell).rjust(width) for cell, width in zip(line, widths, strict=True)) for line in shown]

    def _left(self, step: int, record: dict[str, Any]) -> str:
        left = self.left(step, record["images_per_s"])
        return duration(left) if left is not None else "-"


def _rates(called: str) -> list[str]:
    """Titles of the columns after the metrics."""
    return ["seconds", f"{called}s/s"]


def _numbers(row: dict[str, Any], names: Sequence[str]) -> list[Any]:
    """An epoch's metrics, then its seconds and examples per second."""
    return [*(Number(row[name], 4) if name in row else "-" for name in names), Number(row["seconds"], 1), Number(row["images_per_s"], 0)]


def _fitting(names: Sequence[str], others: Sequence[str], width: int | None) -> list[str]:
    """The first metrics that fit into `width` characters beside the other columns; at least one."""
    widths = [2 + max(NARROWEST, len(metric_name(name))) for name in [*others, *names]]
    kept = [name for end, name in enumerate(names, len(others) + 1) if width is None or sum(widths[:end]) <= width]
    return kept or list(names[:1])


def _history(rows: Sequence[dict[str, Any]], called: str = "image", best: dict[str, Any] | None = None, width: int | None = None) -> str:
    """The table of epochs; a long table keeps only its first, best and last rows. `best`: as in the summary; `width`: see `RunProgress`."""
    last = _rates(called)
    shown, names = list(rows), _fitting(list(metric_values(max(reversed(rows), key=len)))[:MOST_COLUMNS], ["epoch", *last], width)
    if len(rows) > 24:
        top = (best or best_row(rows))["epoch"]
        shown = [row for row in rows if row["epoch"] <= 3 or row["epoch"] == top or row["epoch"] > rows[-1]["epoch"] - 10]
    return table(["epoch", *map(metric_name, names), *last], [[row["epoch"], *_numbers(row, names)] for row in shown])


def shown_result(run: RunFolder, summary: Summary, commands: bool = True, printed: Collection[int] = ()) -> str:
    """The end of a run for the terminal: epochs not yet `printed`, best epoch, files, and, unless a stage follows, the next `commands`."""
    folder = relative(run.path)
    if summary.script:
        return _script_result(run.name, folder, summary, run.output)
    rows, called, expected = run.history, run.noun, summary.predicted_images_per_s
    fair = expected is not None and rows and (summary.steps or 0) >= FAIR_STEPS
    pairs = [
        ("predicted", expected_speed.sentence(expected or 0.0, rows[-1]["images_per_s"], called) if fair else ""),
        ("snapshots", run.lost_snapshots(summary)),
        ("straggler", run.straggler),
        *parameter_server_text.result(run),
        ("MLflow", mlflow_log.place(run)),
    ]
    return result(run.name, folder, summary, rows, pairs, called, commands, printed, command_line.columns())


def result(
    run: str,
    folder: str,
    summary: Summary,
    rows: Sequence[dict[str, Any]],
    more: Sequence[tuple[str, str]] = (),
    called: str = "image",
    commands: bool = True,
    printed: Collection[int] = (),
    width: int | None = None,
) -> str:
    """The end of a run: table of epochs, best epoch, `more` (names and values, which may be empty), paths of the files, next commands.

    The table is left out if all its epochs have been `printed` already; `width`: see `RunProgress`.
    """
    state = f"{run}: {summary.state}"
    if {row["epoch"] for row in rows} <= set(printed):
        # A table that grew line by line ends here.
        lines = ["", state] if printed else [state]
    else:
        lines = [state, "", _history(rows, called, summary.best, width), ""]
    pairs = []
    if summary.best:
        pairs.append(("best epoch", best(summary.best, summary.restored_by)))
    pairs += early(summary)
    pairs += [("time", duration_text)] if (duration_text := _times(summary)) else []
    if summary.images_per_s:
        pairs.append(("speed", f"{summary.images_per_s:,.0f} {called}s/s in training steps"))
    epoch_seconds = [row["seconds"] for row in rows if summary.epochs_done is None or row["epoch"] <= summary.epochs_done]
    if len(epoch_seconds) > 1:
        pairs.append(("mean epoch", f"{statistics.fmean(epoch_seconds):,.1f} s of training steps"))
    pairs += [pair for pair in more if pair[1]]
    if summary.lost:
        pairs.append(("lost", _lost(summary.lost, summary.workers or 0)))
    if summary.took_places:
        pairs.append(("spares", f"{listed(summary.took_places)} took the place of a lost host"))
    if summary.weights_sha256_by_rank:
        pairs.append(("weights", _weights(summary.weights_sha256_by_rank, summary.workers or 0)))
    if summary.inexact_because:
        pairs.append(("not exact", "; ".join(summary.inexact_because) + "; the weights differ a little from those without interruption"))
    if summary.unsaved:
        pairs.append(("not saved", "; ".join(f"{what} ({reason})" for what, reason in summary.unsaved.items())))
    pairs.append(("results", folder))
    return "\n".join([*lines, fields(pairs), *(["", next_commands(after_run(run, summary, rows))] if commands else [])])


def early(summary: Summary) -> list[tuple[str, str]]:
    """Heading and reason for a run with fewer epochs than requested; empty for others."""
    if not summary.ended_early:
        return []
    best = summary.best["epoch"] if summary.best else 0
    why = f"none since epoch {best} was better (train.patience)" if summary.stalled else f"by {summary.ended_by}"
    return [("ended early", f"{why}, after {count(summary.epochs_done or 0, 'epoch')} of {summary.epochs}")]


def _script_result(run: str, folder: str, summary: Summary, output: Sequence[str]) -> str:
    """The end of a script's run: time, output files, next commands."""
    left = [*output[:SHOWN_FILES], *([f"{len(output) - SHOWN_FILES:,} more"] if len(output) > SHOWN_FILES else [])]
    pairs = [
        *([("time", duration_text)] if (duration_text := _times(summary)) else []),
        *([("output", f"{', '.join(left)} (in {folder}/output)")] if left else []),
        ("results", folder),
    ]
    commands = next_commands(after_run(run, summary))
    return "\n".join([f"{run}: {summary.state}", fields(pairs), *(["", commands] if commands else [])])


def _lost(hosts: Sequence[Mapping[str, Any]], left: int) -> str:
    """Text on the hosts without which a run went on, with the times of their last records."""
    shown = [f"{one['host']} at {datetime.datetime.fromtimestamp(one['at']):%H:%M:%S}, step {one['step'] or 0:,}" for one in hosts]
    return f"{listed(shown)}; the run went on with {count(left, 'worker')}"


def _weights(digests: Sequence[str], workers: int) -> str:
    """Sentence on the digests of the weights: one per worker, or a single one if servers keep the weights."""
    if len(set(digests)) > 1:
        return f"DIFFERENT on {len(digests)} workers, which must not happen: sha256 {', '.join(digest[:16] for digest in digests)}"
    where = f"equal on all {len(digests)} workers" if len(digests) > 1 else "of the only worker" if workers == 1 else "kept by the servers"
    return f"{where} (sha256 {digests[0][:16]})"


def _times(summary: Summary) -> str:
    """Text on the durations of a run; empty if unknown.

    A launch counts from Enter to its end, as the user experiences it; for a short training this is more than twice the training time.
    """
    launch, total, parts = summary.launch, summary.seconds_total, []
    if launch:
        until = "this result" if launch["until"] == "result" else "the end of the last worker"
        parts.append(f"{duration(launch['seconds_from_enter'])} from Enter to {until}")
        if "seconds_training" in launch:
            before, trained, after = (duration(launch[f"seconds_{name}"]) for name in ("to_training", "training", "after_training"))
            parts.append(f", {trained} of it training with validation and saving ({before} before, {after} after)")
        elif not summary.script:
            parts.append(", no step was trained")
    elif total and not summary.script:
        parts.append(f"{duration(total)} of the chief's process, {duration(summary.seconds_training or 0)} of it training")
    if total and summary.script:
        parts.append(f"{', ' if parts else ''}{duration(total)} of it the script on the chief")
    if parts and summary.restarts and summary.seconds_training is not None:
        parts.append(f"; all {summary.restarts + 1} launches trained {duration(summary.seconds_training)}")
    return "".join(parts)
