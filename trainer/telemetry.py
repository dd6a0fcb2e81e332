"""What a worker writes while it trains. Files are the only contract with whoever watches.

`workers/<host>/metrics.jsonl`: one JSON object a line, `t` in seconds since 1970:
`{"t", "kind": "phase", "phase", "note"}`, `{"t", "kind": "heartbeat", "phase", "step"}`,
`{"t", "kind": "steps", "epoch", "step", "images_per_s", "loss", "accuracy", "input_wait", "seconds"}`
(`input_wait` and `seconds` are of that call), `{"t", "kind": "epoch", ...the row of history.csv}`,
`{"t", "kind": "reduction", "name", "why"}` of how gradients are sent, `{"t", "kind": "shares", "told"}` of how a
step's images are divided where workers differ,
`{"t", "kind": "split", "epoch", "step", "input", "forward_backward", "compression", "all_reduce", "apply",
"step_seconds", "images"}` of a step that was taken apart: seconds of its parts, of which `input` is the wait
for images a step, averaged over the steps since the sample before (images are gathered a call ahead, so the
wait before one certain step says little); `step_seconds` the whole, with what Python adds between the
parts; `images` those of this worker.
"""

import csv
import json
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import LockstepError
from trainer.files import read_json, write_rows

HISTORY = ("epoch", "loss", "accuracy", "val_loss", "val_accuracy", "learning_rate", "seconds", "images_per_s")
PHASES = ("input", "forward_backward", "compression", "all_reduce", "apply")
"""What a step is made of, in order."""


class Metrics:
    """Appends whole lines to metrics.jsonl; safe from several threads."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self.phase_name, self.step = "starting", 0

    def phase(self, name: str, note: str = "") -> None:
        """Say what this worker is doing now."""
        self.phase_name = name
        self._write("phase", {"phase": name, "note": note})

    def heartbeat(self) -> None:
        """Say that this worker is alive."""
        self._write("heartbeat", {"phase": self.phase_name, "step": self.step})

    def steps(self, **values: Any) -> None:
        """Record the progress of one call."""
        self.step = values["step"]
        self._write("steps", values)

    def reduction(self, name: str, why: str) -> None:
        """Record how gradients are sent, and why."""
        self._write("reduction", {"name": name, "why": why})

    def shares(self, told: str) -> None:
        """Record how a step's images are divided."""
        self._write("shares", {"told": told})

    def split(self, **values: Any) -> None:
        """Record the parts of a step that was taken apart."""
        self._write("split", values)

    def epoch(self, row: dict[str, Any]) -> None:
        """Record a finished epoch."""
        self._write("epoch", row)

    def _write(self, kind: str, values: dict[str, Any]) -> None:
        line = json.dumps({"t": round(time.time(), 3), "kind": kind, **values})
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()


class Splits:
    """Collects what a worker's steps are made of, from the steps that are taken apart."""

    def __init__(self, metrics: Metrics):
        self._metrics = metrics
        self._waited, self._steps = 0.0, 0
        self._of_epoch: list[dict[str, float]] = []

    def waited(self, seconds: float, steps: int) -> None:
        """Note how long a call of so many steps waited for its images."""
        self._waited, self._steps = self._waited + seconds, self._steps + steps

    def sample(self, epoch: int, step: int, images: int, parts: dict[str, float] | None, seconds: float) -> None:
        """Record a step that was taken apart.

        Args:
            epoch: from 1.
            step: its number, from 1.
            images: of this worker in the step.
            parts: seconds of every phase but `input`; None when TensorFlow traced meanwhile, which leaves the sample out.
            seconds: of the whole step, without its wait for input.
        """
        waited, self._waited, self._steps = self._waited / self._steps, 0.0, 0
        if parts is None:
            return
        values = {"input": waited, **parts}
        self._of_epoch.append(values)
        rounded = {phase: round(values[phase], 6) for phase in PHASES}
        self._metrics.split(epoch=epoch, step=step, **rounded, step_seconds=round(waited + seconds, 6), images=images)

    def epoch(self) -> dict[str, float]:
        """Mean milliseconds of every phase over the samples since the last call; empty when there was none."""
        samples, self._of_epoch = self._of_epoch, []
        return {phase: 1000 * statistics.fmean(one[phase] for one in samples) for phase in PHASES} if samples else {}


class StepLines:
    """Lines for worker.log every so many steps: images/s of late and on average; and ten times as seldom loss and learning rate."""

    def __init__(self, every: int):
        self._every = every
        self._late, self._all = np.zeros(3), np.zeros(3)

    def add(self, step: int, steps: int, sums: Sequence[float], seconds: float, rate: float) -> list[str]:
        """Lines to write after a call.

        Args:
            step: finished in all.
            steps: of the call.
            sums: of losses and images over the call.
            seconds: that it took.
            rate: of its last step.
        """
        self._late += (sums[0], sums[1], seconds)
        self._all += (sums[0], sums[1], seconds)
        if not self._every or step // self._every == (step - steps) // self._every:
            return []
        (loss, images, took), self._late = self._late, np.zeros(3)
        lines = [f"step {step:,}: {images / took:,.1f} images/s, on average {self._all[1] / self._all[2]:,.1f}"]
        if step // (10 * self._every) != (step - steps) // (10 * self._every):
            lines.append(f"step {step:,}: loss {loss / images:.4f}, learning rate {rate:g}")
        return lines


class History:
    """history.csv: one row an epoch; an epoch that is trained again replaces its row."""

    def __init__(self, path: Path):
        self._path = path
        self.rows = read_history(path)

    def add(self, row: dict[str, Any]) -> None:
        """Add or replace an epoch's row and write the file anew."""
        kept = [old for old in self.rows if old["epoch"] < row["epoch"]]
        self.rows = [*kept, {key: row[key] for key in HISTORY}]
        write_rows(self._path, HISTORY, self.rows)

    def truncate(self, epochs: int) -> None:
        """Forget epochs that the restored state has not seen."""
        self.rows = [row for row in self.rows if row["epoch"] <= epochs]

    def best(self) -> dict[str, Any] | None:
        """The epoch with the highest validation accuracy, the earliest of equals."""
        if not self.rows:
            return None
        row = max(self.rows, key=lambda row: (row["val_accuracy"], -row["epoch"]))
        return {"epoch": row["epoch"], "val_accuracy": row["val_accuracy"]}


def read_history(path: Path) -> list[dict[str, Any]]:
    """Rows of a history.csv as numbers; an empty list when there is none."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [{key: int(value) if key == "epoch" else float(value) for key, value in row.items()} for row in rows]


def read_records(path: Path) -> list[dict[str, Any]]:
    """Records of a metrics.jsonl, oldest first; an empty list when there is none. A torn last line is not yet one.

    Raises:
        LockstepError: a line that is no record.
    """
    if not path.is_file():
        return []
    complete = path.read_text(encoding="utf-8").rpartition("\n")[0]
    return [_record(path, number, line) for number, line in enumerate(complete.splitlines(), 1)]


def _record(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError) as error:
        raise LockstepError(f"{path}, line {number}: no record of a worker ({error}); remove that line") from None


def chief_records(run: Path) -> list[dict[str, Any]]:
    """The chief's records of a run's last launch."""
    chief = read_json(run / "cluster.json")["hosts"][0]["name"]
    return read_records(run / "workers" / chief / "metrics.jsonl")


class Events:
    """TensorBoard scalars of both splits; only the chief makes one."""

    def __init__(self, folder: Path):
        import tensorflow as tf
        from tensorflow.core.framework import summary_pb2

        self._write, self._float = tf.summary.write, tf.float32
        # What `tf.summary.scalar` adds, which needs the package tensorboard; a node does without it.
        plugin = summary_pb2.SummaryMetadata.PluginData(plugin_name="scalars")
        self._scalar = summary_pb2.SummaryMetadata(plugin_data=plugin, data_class=summary_pb2.DATA_CLASS_SCALAR)
        self._constant = tf.constant
        self._writers = {split: tf.summary.create_file_writer(str(folder / split)) for split in ("train", "validation")}

    def epoch(self, row: dict[str, Any]) -> None:
        """Write a finished epoch's scalars; the x axis is the epoch."""
        values = {
            "train": {"loss": "loss", "accuracy": "accuracy", "learning_rate": "learning_rate", "images_per_s": "images_per_s"},
            "validation": {"loss": "val_loss", "accuracy": "val_accuracy"},
        }
        for split, scalars in values.items():
            self._scalars(split, row["epoch"], {tag: row[key] for tag, key in scalars.items()})

    def phases(self, epoch: int, phases: dict[str, float]) -> None:
        """Write what the chief's steps were made of in an epoch, as `split/<phase>` in milliseconds."""
        if phases:
            self._scalars("train", epoch, {f"split/{phase}": value for phase, value in phases.items()})

    def _scalars(self, split: str, epoch: int, values: dict[str, float]) -> None:
        with self._writers[split].as_default(step=epoch):
            for tag, value in values.items():
                self._write(tag, self._constant(value, self._float), metadata=self._scalar)
        self._writers[split].flush()
