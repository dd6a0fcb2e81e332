"""Records of a worker's training: lines in worker.log, metrics.jsonl, history.csv, TensorBoard's events and summary.json."""

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainer.checkpoint.states import Progress
from trainer.common.errors import ConfigError
from trainer.common.files import write_json
from trainer.data.batch import Batch, Call
from trainer.data.spec import noun
from trainer.engine.job import Job
from trainer.host import host_load
from trainer.rundir.best_epoch import monitor
from trainer.rundir.full_disk import Saver
from trainer.rundir.schemas import EPOCH_COLUMNS, STRAGGLER, VALIDATION, numbers, rounded
from trainer.rundir.straggler import UNKNOWN, Straggler, diagnose
from trainer.worker.telemetry import Events, History, ProgressLines, Splits, StepLines

if TYPE_CHECKING:
    from trainer.network.cluster import Cluster
    from trainer.reduction.cost_model import Choice


class Recorder:
    """Records one worker's training; the chief also writes the files of the run."""

    def __init__(self, job: Job, is_chief: bool, saver: Saver, progress: Progress):
        """Continue the records of a run that has made this progress, which the trainer updates."""
        self._job, self._saver, self._progress, self._is_chief = job, saver, progress, is_chief
        self.history = History(job.run / "history.csv", job.config.train.monitor)
        self.history.restore(progress.history, progress.step // job.counts.steps_per_epoch)
        self._events = Events(job.run / "logs") if is_chief else None
        called = noun(job.manifest.table)
        self._splits, self._step_lines = Splits(job.metrics), StepLines(job.config.telemetry.log_every, called)
        self._progress_lines = ProgressLines(job.counts.epochs, job.counts.total_steps, called, is_chief)
        self._detailed = is_chief and job.config.telemetry.log_every > 0
        self._sampled, self._sent, self._compared = host_load.sample(), 0, progress.step
        self._suspect: int | None = None
        self._not_finite: set[str] = set()
        """Metrics that were not finite and about which the user has been warned."""

    def call(self, epoch: int, steps: int, images: float, seconds: float, waited: float, rate: float, logs: Mapping[str, Any]) -> None:
        """Record a call: its images, its seconds including the wait for them, its last step's rate, the logs of the epoch so far."""
        progress, metrics, results = self._progress, self._job.metrics, numbers(logs)
        if self._detailed:
            lines = self._step_lines.add(progress.step, steps, images, seconds, rate, results)
        else:
            lines = self._progress_lines.add(epoch, progress.step, images, seconds, results)
        for line in lines:
            print(line, flush=True)
        metrics.step = progress.step
        if progress.step // self._job.config.train.steps_per_call % self._job.config.telemetry.sample_every == 0:
            metrics.record(
                "steps",
                epoch=epoch,
                step=progress.step,
                images_per_s=round(images / seconds, 1),
                input_wait=round(waited, 6),
                seconds=round(seconds, 6),
                metrics=rounded(results),
            )

    def split(self, epoch: int, call: Call, batch: Batch, parts: dict[str, float] | None, seconds: float, waited: float) -> None:
        """Record the wait for a call's images and, for a profiled step, its `parts` and its seconds without that wait."""
        self._splits.waited(waited, call.steps)
        if call.taken_apart:
            self._splits.sample(epoch, self._progress.step, int(batch.weights.sum()), parts, seconds)

    def row(self, epoch: int, logs: dict[str, Any], rate: float) -> dict[str, Any]:
        """The row of history.csv of the epoch that just ended: its logs, the learning rate, times."""
        progress = self._progress
        every = {name: value for name, value in numbers(logs).items() if name not in EPOCH_COLUMNS}
        places = {name: place for place, name in enumerate(every)}
        # Keras sorts the logs of the validation by name.
        order = sorted(every, key=lambda name: (name.startswith(VALIDATION), places.get(name.removeprefix(VALIDATION), len(places))))
        metrics = {name: every[name] for name in order}
        validation = any(name.startswith(VALIDATION) for name in metrics)
        asked = self._job.config.train.monitor
        if asked and validation and monitor([], asked).metric not in metrics:
            raise ConfigError(f"train.monitor={asked}: the model computes no such metric; it has: {', '.join(metrics)}")
        if self._is_chief:
            self._warn(epoch, {name: value for name, value in metrics.items() if not math.isfinite(value)})
        return {
            "epoch": epoch,
            **rounded({**metrics, "learning_rate": float(rate)}),
            "seconds": round(progress.seconds, 3),
            "images_per_s": round(progress.images / progress.seconds, 1),
        }

    def _warn(self, epoch: int, metrics: dict[str, float]) -> None:
        """Warn once about each metric that is not finite."""
        for name in [name for name in metrics if name not in self._not_finite]:
            self._not_finite.add(name)
            self._job.metrics.warning(f"{name} is {metrics[name]} in epoch {epoch}: history.csv and all that compares epochs go without it")

    def compare(self, epoch: int, cluster: "Cluster") -> None:
        """Compare the workers' own work and their hosts' activity since the last call; all call this, and the chief records a straggler."""
        direct, now = cluster.direct, self._progress.step
        connections = host_load.links(direct.connections if direct else [])
        sampled = host_load.sample(connections)
        load = host_load.between(self._sampled, sampled, self._splits.recent(), connections)
        self._sampled = sampled
        rows = cluster.gather(load.row())
        sent = direct.bytes_sent if direct else 0
        a_step = (sent - self._sent) // max(1, now - self._compared)
        self._sent, self._compared = sent, now
        if cluster.member.is_chief and all(row[0] for row in rows):
            straggler = self._confirmed(diagnose([host_load.Load(*row) for row in rows.tolist()], a_step), cluster.member.on_one_machine)
            fields = dataclasses.asdict(straggler) if straggler else {"rank": 0, "cause": "", **dict.fromkeys(STRAGGLER, 0)}
            self._job.metrics.record("straggler", epoch=epoch, **fields)

    def _confirmed(self, straggler: Straggler | None, one_machine: bool = False) -> Straggler | None:
        """The straggler; without a visible cause only if found twice in a row, because a shared machine slows any host at times.

        On one machine there is no straggler, because workers share its cores.
        """
        if one_machine and straggler and straggler.cause == UNKNOWN:
            return None
        suspect, self._suspect = self._suspect, straggler.rank if straggler and straggler.cause == UNKNOWN else None
        return straggler if self._suspect is None or self._suspect == suspect else None

    def events(self, row: dict[str, Any]) -> None:
        """Write an epoch's events, on the chief."""
        phases, events = self._splits.epoch(), self._events
        if events is not None:
            restarts = self._progress.restarts if self._job.config.recovery.max_restarts else None
            self._saver.save("TensorBoard's log", self._job.run / "logs", None, lambda: events.epoch(row, phases, restarts))

    def add(self, row: dict[str, Any]) -> None:
        """Add an epoch's row to the history, which the chief also writes."""
        self.history.add(row)
        if self._is_chief:
            self._saver.save("history.csv", self._job.run / "history.csv", None, self.history.write)

    def epoch(self, row: dict[str, Any]) -> None:
        """Record a finished epoch in metrics.jsonl and worker.log."""
        self._job.metrics.record("epoch", **row)
        print(self._progress_lines.epoch(row), flush=True)

    def summary(
        self, state: str, stalled: bool, seconds_total: float, choice: "Choice", shares: list[int], by_rank: list[str] | None
    ) -> None:
        """Write summary.json; `stalled`: `train.patience` ended the run; `by_rank`: digests of the weights, None before the end."""
        progress, counts = self._progress, self._job.counts
        # The current epoch may already have a row if the run ended inside it.
        finished = progress.step // counts.steps_per_epoch
        steps_seconds = sum(row["seconds"] for row in self.history.rows if row["epoch"] <= finished) + progress.seconds
        summary = {
            "state": state,
            "workers": counts.workers,
            "epochs_done": finished,
            "epochs": counts.epochs,
            "steps": progress.step,
            "total_steps": counts.total_steps,
            "in_steps": self._job.config.train.steps is not None,
            "restarts": progress.restarts,
            "ended_early": (progress.ended or stalled) and progress.step < counts.total_steps,
            "ended_by": progress.ended_by,
            "stalled": stalled,
            "reduction": dataclasses.asdict(choice),
            "shares": shares if len(set(shares)) > 1 else None,
            "seconds_total": round(seconds_total, 3),
            "seconds_training": round(progress.seconds_training, 3),
            "images_per_s": round(progress.images_total / steps_seconds, 1) if steps_seconds else None,
            "best": self.history.best(),
            "restored_by": progress.restored,
            "weights_sha256": by_rank[0] if by_rank else None,
            "weights_sha256_by_rank": by_rank,
            "exact": not progress.inexact,
            "inexact_because": progress.inexact,
            "unsaved": self._saver.missing,
        }
        path = self._job.run / "summary.json"
        self._saver.save("summary.json", path, None, lambda: write_json(path, summary))
