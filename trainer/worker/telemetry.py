"""Records of a worker during training. Files are the only interface to the control node.

`workers/<host>/metrics.jsonl`: one JSON object per line, with `t` in seconds since 1970, its `kind`, and the fields of its kind
(`KINDS` in `control.remote.worker_files`). In `steps`, `input_wait` and `seconds` are the call's. In `split`, a profiled step,
`input` is the wait for images per step, averaged over the steps since the previous sample (images are gathered one call ahead, so the
wait before a single step means little); `step_seconds` is the whole step, including Python's overhead between the parts; `images` counts
this worker's.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.common.files import write_rows
from trainer.host.host_load import Load
from trainer.rundir.best_epoch import RESTORED, judged, monitor
from trainer.rundir.metrics_log import Metrics
from trainer.rundir.schemas import PHASES, VALIDATION, metric_values, read_history
from trainer.rundir.straggler import own_work
from trainer.worker.backend import EventFile

PROGRESS_S = 10.0
"""Seconds between two progress lines in worker.log."""
RECENT, FEWEST = 9, 3
"""Most and fewest profiled steps by which workers are compared."""


class Splits:
    """Collects the parts of a worker's steps from its profiled steps."""

    def __init__(self, metrics: Metrics):
        self._metrics = metrics
        self._waited, self._steps = 0.0, 0
        self._all_waited, self._all_steps = 0.0, 0
        self._of_epoch: list[dict[str, float]] = []
        self._recent: deque[dict[str, float]] = deque(maxlen=RECENT)

    def waited(self, seconds: float, steps: int) -> None:
        """Note the seconds that a call of `steps` steps waited for its images."""
        self._waited, self._steps = self._waited + seconds, self._steps + steps
        self._all_waited, self._all_steps = self._all_waited + seconds, self._all_steps + steps

    def sample(self, epoch: int, step: int, images: int, parts: dict[str, float] | None, seconds: float) -> None:
        """Record a profiled step of this worker's `images` that took `seconds` without its wait for input.

        `parts` are the seconds of every phase except `input`; None if TensorFlow traced during the step, which drops the sample.
        """
        waited, self._waited, self._steps = self._waited / self._steps, 0.0, 0
        if parts is None:
            return
        values = {"input": waited, **parts}
        self._of_epoch.append(values)
        self._recent.append(values)
        rounded = {phase: round(values[phase], 6) for phase in PHASES}
        self._metrics.record("split", epoch=epoch, step=step, **rounded, step_seconds=round(waited + seconds, 6), images=images)

    def recent(self) -> Load:
        """The times of a step; zeros if there are too few samples.

        Work and all-reduce are medians of the last samples, across epochs. Waiting is the mean of all steps since the last call,
        because disks stall now and then, and prefetching hides only short stalls.
        """
        waited, self._all_waited, self._all_steps = self._all_waited / max(1, self._all_steps), 0.0, 0
        if len(self._recent) < FEWEST:
            return Load()
        work = statistics.median(own_work({phase: one[phase] for phase in PHASES}) - one["input"] for one in self._recent)
        reduced = statistics.median(one["all_reduce"] for one in self._recent)
        return Load(max(1, round(1e6 * (work + waited))), round(1e6 * waited), reduced_us=round(1e6 * reduced))

    def epoch(self) -> dict[str, float]:
        """Mean milliseconds of every phase over the samples since the last call; empty if there were none."""
        samples, self._of_epoch = self._of_epoch, []
        return {phase: 1000 * statistics.fmean(one[phase] for one in samples) for phase in PHASES} if samples else {}


class StepLines:
    """Lines for worker.log every N steps: recent and average examples/s (`noun`); every 10 N steps also loss and learning rate."""

    def __init__(self, every: int, noun: str):
        self._every, self._noun = every, noun
        self._recent, self._images, self._seconds = np.zeros(2), 0.0, 0.0

    def add(self, step: int, steps: int, images: float, seconds: float, rate: float, results: Mapping[str, float]) -> list[str]:
        """Lines to write after a call of `steps` steps that ended at `step`; `results` are the epoch's metrics so far."""
        self._recent = self._recent + np.array([seconds, images])
        self._images, self._seconds = self._images + images, self._seconds + seconds
        if not self._every or step // self._every == (step - steps) // self._every:
            return []
        (took, recent), self._recent = self._recent, np.zeros(2)
        lines = [f"step {step:,}: {recent / took:,.1f} {self._noun}s/s, on average {self._images / self._seconds:,.1f}"]
        if step // (10 * self._every) != (step - steps) // (10 * self._every):
            lines.append(f"step {step:,}: {_shown(dict([*results.items()][:1])).strip()}, learning rate {rate:g}")
        return lines


class ProgressLines:
    """Progress lines for worker.log: one at once, then one every `PROGRESS_S` seconds, and one per epoch."""

    def __init__(self, epochs: int, steps: int, noun: str, detailed: bool, clock: Callable[[], float] = time.monotonic):
        """Take the run's epochs and steps and the noun for an example; `detailed`, as on the chief, adds examples/s and metrics."""
        self._epochs, self._steps, self._noun, self._detailed, self._clock = epochs, steps, noun, detailed, clock
        self._next, self._images, self._seconds = -math.inf, 0.0, 0.0

    def add(self, epoch: int, step: int, images: float, seconds: float, results: Mapping[str, float]) -> list[str]:
        """Lines to write after a call of `images` and `seconds` that ended at `step`; `results` are the epoch's metrics so far."""
        self._images, self._seconds = self._images + images, self._seconds + seconds
        if self._clock() < self._next:
            return []
        line = f"epoch {epoch}/{self._epochs}  step {step:,}/{self._steps:,}"
        if self._detailed:
            line += f"  {self._images / self._seconds:,.0f} {self._noun}s/s{_shown(results)}"
        self._next, self._images, self._seconds = self._clock() + PROGRESS_S, 0.0, 0.0
        return [line]

    def epoch(self, row: dict[str, Any]) -> str:
        """The line of a finished epoch."""
        line = f"epoch {row['epoch']}/{self._epochs} done"
        return f"{line}{_shown(metric_values(row))}  {row['seconds']:,.1f} s" if self._detailed else line


def _shown(metrics: Mapping[str, float]) -> str:
    """Text on metrics for the end of a log line."""
    return "".join(f"  {name.replace('_', ' ')} {value:.4f}" for name, value in metrics.items())


class History:
    """history.csv: one row per epoch; an epoch that is trained again replaces its row."""

    def __init__(self, path: Path, asked: str | None = None):
        """Read the file, if it exists; `asked` is `train.monitor`."""
        self._path, self._asked = path, asked
        self.rows = read_history(path)

    def add(self, row: dict[str, Any]) -> None:
        """Add or replace an epoch's row."""
        self.rows = [*(old for old in self.rows if old["epoch"] < row["epoch"]), row]

    def write(self) -> None:
        """Rewrite the file."""
        # A resumed run that is compiled with other metrics has other columns; an epoch without validation has fewer columns.
        widest = sorted([self.rows[-1], *self.rows], key=len, reverse=True)
        write_rows(self._path, list(dict.fromkeys(name for one in widest for name in one)), self.rows)

    def restore(self, rows: Sequence[dict[str, Any]], epochs: int) -> None:
        """Take over a state's `rows`, and drop epochs that the state has not seen."""
        known = {row["epoch"]: row for row in [*self.rows, *rows]}
        self.rows = [known[epoch] for epoch in sorted(known) if epoch <= epochs]

    def best(self) -> dict[str, Any] | None:
        """Number of the best epoch, its value of the deciding metric, and the origin of its weights if a callback restored them."""
        if not self.rows:
            return None
        decides = monitor(judged(self.rows)[0], self._asked)
        row = decides.best(self.rows)
        return {"epoch": row["epoch"], **{name: row[name] for name in [decides.metric, RESTORED] if name in row}}


class Events:
    """TensorBoard scalars of both splits; only the chief writes them."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._files: dict[str, EventFile] = {}

    def epoch(self, row: dict[str, Any], phases: dict[str, float], restarts: int | None = None) -> None:
        """Write a finished epoch's scalars, and `phases` of its steps as `split/<phase>` in milliseconds; the x axis is the epoch.

        `restarts`, if given: number of times that the run was continued from a saved state until then.
        """
        values = metric_values(row)
        training = {tag: value for tag, value in values.items() if not tag.startswith(VALIDATION)}
        rates = {tag: row[tag] for tag in ("learning_rate", "images_per_s")}
        rates |= {} if restarts is None else {"restarts": restarts}
        self._scalars("train", row["epoch"], training | rates | {f"split/{phase}": value for phase, value in phases.items()})
        validation = {tag.removeprefix(VALIDATION): value for tag, value in values.items() if tag.startswith(VALIDATION)}
        self._scalars("validation", row["epoch"], validation)

    def _scalars(self, split: str, epoch: int, values: dict[str, float]) -> None:
        try:
            if split not in self._files:
                self._files[split] = EventFile(self._folder / split)
            self._files[split].write(epoch, values)
        except Exception:
            # Readers stop at a torn record, so later events go into another file.
            self._files.pop(split, None)
            raise
