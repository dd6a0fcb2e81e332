"""The outer loop of one worker: join, restore, train epoch by epoch, validate, record, end.

Inner and outer loop are apart, as in Orbit's controller: `trainer.step` runs steps, this decides
what happens between them.
"""

import contextlib
import dataclasses
import functools
import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer import assembly, balance, choosing, reduction, schedule, step
from trainer.checkpoint import Memories, States, newest_progress, restore, save_snapshot
from trainer.cluster import Cluster, digest
from trainer.config import Config, Reduction
from trainer.data.cache import Images
from trainer.data.manifest import Manifest
from trainer.data.partition import EpochPlan, share
from trainer.data.pipeline import Batches, Feeder, calls
from trainer.errors import DONE, PREEMPTED, ClusterError, Diverged
from trainer.files import write_json
from trainer.reduction import chain
from trainer.schedule import Counts
from trainer.telemetry import Events, History, Metrics, Splits, StepLines

VALIDATION_BATCH = 250


@dataclass
class Job:
    """What a worker was asked to do, and with what."""

    config: Config
    counts: Counts
    run: Path
    manifest: Manifest
    images: dict[str, Images]
    metrics: Metrics
    stop_asked: Callable[[], bool]
    own: Path
    """This worker's part of the run directory, `workers/<host>`."""
    started: float
    """When this process began with it, on the monotonic clock."""

    @property
    def stop_marker(self) -> Path:
        """Exists when the stop was asked for by stop.yml (and not by a signal from elsewhere)."""
        return self.own / "stop"


class Trainer:
    """One worker's training."""

    def __init__(self, job: Job, cluster: Cluster):
        """Build the model and everything around it under the strategy's scope."""
        self.job, self.cluster = job, cluster
        config = job.config
        cluster.connect(config.reduction.transport)
        self.states = States(job.run / "state", config.checkpoint.keep)
        local = assembly.build_local(cluster, config, len(job.manifest.classes))
        self.model = local.model
        self._forward_backward_call = step.make_forward_backward_call(local)
        self._before = newest_progress(cluster, self.states)
        parts, method = assembly.assemble(local, config, self._choose())
        self.optimizer = parts.optimizer
        self._train_call, self._split_call = step.make_train_call(parts), step.SplitCall(parts, self._forward_backward_call)
        self._warmup = config.reduction.warmup_steps if method.memory else 0
        uncompressed = chain.make(reduction.plain(), cluster.all_reduce, cluster.direct)
        self._warmup_call = step.make_train_call(dataclasses.replace(parts, reduction=uncompressed))
        self._evaluate_call = step.make_evaluate_call(self.model)
        self.variables = [variable.value for variable in self.model.weights] + self.optimizer.slots
        self.memories = Memories(job.own / "memory", cluster.place, config.checkpoint.keep, method.memory)
        self.shares = self._divide()
        self.history = History(job.run / "history.csv")
        self.events = Events(job.run / "logs") if cluster.place.is_chief else None
        self.splits, self._lines = Splits(job.metrics), StepLines(config.telemetry.log_every)
        self._prepare_data()

    def _divide(self) -> list[int]:
        job, train = self.job, self.job.config.train
        if train.batch_sizes == balance.CALIBRATED:
            job.metrics.phase("measuring the workers")
        found = balance.shares(train, self.cluster, job.counts.global_batch, self._before.shares, self._own_seconds, self._overhead_seconds)
        if len(set(found)) > 1:
            job.metrics.shares(balance.told(self.cluster.place.hosts, job.counts.global_batch, found))
        return found

    def _choose(self) -> Reduction:
        job, cluster = self.job, self.cluster
        job.metrics.phase("choosing how to send gradients")
        place = cluster.place
        parts = balance.given(job.config.train, place.workers) or [1] * place.workers
        measure = functools.partial(self._own_seconds, max(1, job.counts.global_batch * parts[place.rank] // sum(parts)))
        chosen, self.choice = choosing.resolve(job.config.reduction, cluster, step.shapes(self.model), self._before.method, measure)
        job.metrics.reduction(self.choice.name, self.choice.why)
        return chosen

    def _own_seconds(self, batch: int) -> float:
        return choosing.own_seconds(self.cluster, self._forward_backward_call, self.job.config.data.image_size, batch)

    def _overhead_seconds(self) -> float:
        with self._taken_back():
            return choosing.overhead_seconds(self._split_call, self.job.config.data.image_size)

    def _prepare_data(self) -> None:
        counts, place = self.job.counts, self.cluster.place
        order = np.asarray(self.job.manifest.validation_order)
        chosen = order[counts.validation_images : counts.validation_images + counts.train_images]
        self._feeder = Feeder(self.job.images["train"], chosen, self.shares, place.rank)
        start, stop = share(counts.validation_images, self.shares, place.rank)
        self._validation = np.sort(order[: counts.validation_images])[start:stop]

    def run(self) -> int:
        """Train to the end or to a stop.

        Returns:
            The exit code, DONE or PREEMPTED.

        Raises:
            Diverged: the loss is not a number.
            tf.errors.OpError: a peer is gone.
        """
        self.job.metrics.phase("tracing")
        self._trace()
        gc.freeze()
        gc.enable()
        self.job.metrics.phase("restoring")
        self.progress = restore(self.cluster, self.states, self.variables, self.memories)
        self._remember()
        self._seconds_before = self.progress.seconds_total
        self.history.truncate(self.progress.step // self.job.counts.steps_per_epoch)
        # A layer may keep what is none from the start, as a mask of -inf.
        self._numbers = [bool(np.isfinite(array).all()) for array in self._weights()]
        self._same_weights("at the start")
        self._summary("RUNNING")
        stopped, self._training_since = False, time.monotonic()
        while self.progress.step < self.job.counts.total_steps and not stopped:
            stopped = self._epoch()
        return self._end(stopped)

    def _remember(self) -> None:
        """What was measured goes into the state: a run that is continued keeps it."""
        if self.cluster.place.workers > 1:
            self.progress.method = self.choice.name
        if self.job.config.train.batch_sizes == balance.CALIBRATED:
            self.progress.shares = self.shares

    def _trace(self) -> None:
        """Take a step of each kind on a blank image, and take it back: no step of training waits for tracing or for connections."""
        blank, rates = step.blank(self.job.config.data.image_size), np.zeros(1, np.float32)
        with self._taken_back():
            for call in [self._train_call, *([self._warmup_call] if self._warmup else [])]:
                call(blank, rates)
            if self.job.config.telemetry.split_every:
                self._split_call(blank, rates)

    @contextlib.contextmanager
    def _taken_back(self) -> Iterator[None]:
        """Whatever steps are taken inside: afterwards all that training changes is as before."""
        kept = [*self.variables, *self.memories.memory]
        before = [np.array(variable.numpy()) for variable in kept]
        yield
        for variable, value in zip(kept, before, strict=True):
            variable.assign(value)

    def _epoch(self) -> bool:
        """Train what is left of an epoch; True when all workers agreed to stop inside it."""
        counts, progress = self.job.counts, self.progress
        epoch = counts.epoch_of(progress.step)
        self.job.metrics.phase("training", f"epoch {epoch}")
        plan = EpochPlan(counts.train_images, counts.global_batch, counts.steps_per_epoch, self.job.config.seed, epoch)
        stop = False
        for batches in self._timed(self._feeder.epoch(plan, self._calls(epoch))):
            stop = self._call(epoch, *batches)
            if stop:
                break
        if self._epoch_is_over():
            self._finish_epoch(epoch)
        return stop

    def _epoch_is_over(self) -> bool:
        step = self.progress.step
        return step % self.job.counts.steps_per_epoch == 0 or step >= self.job.counts.total_steps

    def _calls(self, epoch: int) -> Any:
        counts, config = self.job.counts, self.job.config
        offset = (epoch - 1) * counts.steps_per_epoch
        last = min(counts.steps_per_epoch, counts.total_steps - offset)
        uneven = last * counts.global_batch > counts.train_images and last == counts.steps_per_epoch
        return calls(
            self.progress.step - offset,
            last,
            config.train.steps_per_call,
            uneven,
            config.checkpoint.every_steps,
            offset,
            config.telemetry.split_every,
            self._warmup,
        )

    @staticmethod
    def _timed(feed: Any) -> Any:
        """Pairs of the next batches and the seconds spent waiting for them."""
        while True:
            begun = time.monotonic()
            batches = next(feed, None)
            if batches is None:
                return
            yield batches, time.monotonic() - begun

    def _call(self, epoch: int, batches: Batches, waited: float) -> bool:
        rates = self._rates(epoch, batches)
        begun = time.monotonic()
        rows, parts = self._train(batches, rates)
        seconds = time.monotonic() - begun
        self._check_finite(rows, rates)
        sums = rows.astype(np.float64).sum(axis=0)
        self._add(batches.call.steps, sums, seconds + waited)
        self._log(batches.call.steps, sums, seconds + waited, float(rates[-1]))
        self._sample(epoch, sums, seconds + waited, waited)
        self._sample_split(epoch, batches, parts, seconds, waited)
        stop, every = bool(sums[3] > 0), self.job.config.checkpoint.every_steps
        # At the end of an epoch its record comes first: a state saved here would skip it on resume.
        if (stop or (every and self.progress.step % every == 0)) and not self._epoch_is_over():
            self._check_weights()
            self.job.metrics.phase("saving", f"step {self.progress.step}")
            self._save_state()
            self.job.metrics.phase("training", f"epoch {epoch}")
        return stop

    def _train(self, batches: Batches, rates: np.ndarray) -> tuple[np.ndarray, dict[str, float] | None]:
        """The call's rows and, of a step that was taken apart, the seconds of its parts."""
        stop = np.float32(self.job.stop_asked() or self._out_of_time())
        numbers = self.progress.step + np.arange(batches.call.steps, dtype=np.int32)
        batch = step.Batch(batches.images, batches.labels, batches.weights, batches.places, batches.totals, numbers, stop)
        if batches.call.taken_apart:
            return self._split_call(batch, rates)
        call = self._warmup_call if self.progress.step < self._warmup else self._train_call
        return call(batch, rates).numpy(), None

    def _add(self, steps: int, sums: np.ndarray, seconds: float) -> None:
        progress = self.progress
        progress.step += steps
        progress.loss, progress.images, progress.correct = progress.loss + sums[0], progress.images + sums[1], progress.correct + sums[2]
        progress.seconds, progress.images_total = progress.seconds + seconds, progress.images_total + sums[1]

    def _log(self, steps: int, sums: np.ndarray, seconds: float, rate: float) -> None:
        if self.cluster.place.is_chief:
            for line in self._lines.add(self.progress.step, steps, sums.tolist(), seconds, rate):
                print(line, flush=True)

    def _rates(self, epoch: int, batches: Batches) -> np.ndarray:
        counts = self.job.counts
        steps = range(batches.call.first, batches.call.first + batches.call.steps)
        times = (epoch - 1 + number / counts.steps_per_epoch for number in steps)
        return np.array([schedule.learning_rate(self.job.config, counts.workers, at) for at in times], np.float32)

    def _out_of_time(self) -> bool:
        limit = self.job.config.train.time_limit
        return limit is not None and self.cluster.place.is_chief and time.monotonic() - self.job.started > limit

    def _check_finite(self, rows: np.ndarray, rates: np.ndarray) -> None:
        bad = np.flatnonzero(~np.isfinite(rows[:, 0]))
        if len(bad):
            number, rate = self.progress.step + int(bad[0]) + 1, float(rates[bad[0]])
            raise Diverged(f"the loss became {rows[bad[0], 0]} at step {number} with {self._mend(rate)}")

    def _check_update(self, value: float, what: str) -> None:
        """Refuse what the last step made of the weights: its own loss is that of the ones before."""
        if not math.isfinite(value):
            step, counts = self.progress.step, self.job.counts
            rate = schedule.learning_rate(self.job.config, counts.workers, (step - 1) / counts.steps_per_epoch)
            raise Diverged(f"{what} became {value} after step {step} with {self._mend(float(rate))}")

    def _mend(self, rate: float) -> str:
        lower = f"learning rate {rate:g}; lower it (-e set=optimizer.learning_rate={rate / 10:g}) under another run name"
        narrow = self.choice.name == "half" and self.job.config.reduction.dtype == "float16"
        return f"{lower}. Or a gradient was too large for float16: reduction.dtype=bfloat16" if narrow else lower

    def _sample(self, epoch: int, sums: np.ndarray, seconds: float, waited: float) -> None:
        self.job.metrics.step = self.progress.step
        if self.progress.step // self.job.config.train.steps_per_call % self.job.config.telemetry.sample_every == 0:
            self.job.metrics.steps(
                epoch=epoch,
                step=self.progress.step,
                images_per_s=round(sums[1] / seconds, 1),
                loss=round(self.progress.loss / self.progress.images, 6),
                accuracy=round(self.progress.correct / self.progress.images, 6),
                input_wait=round(waited, 6),
                seconds=round(seconds, 6),
            )

    def _sample_split(self, epoch: int, batches: Batches, parts: dict[str, float] | None, seconds: float, waited: float) -> None:
        self.splits.waited(waited, batches.call.steps)
        if batches.call.taken_apart:
            self.splits.sample(epoch, self.progress.step, int(batches.weights.sum()), parts, seconds)

    def _finish_epoch(self, epoch: int) -> None:
        progress = self.progress
        val_loss, val_accuracy = self._validate()
        self._check_update(val_loss, "the validation loss")
        self._check_weights()
        row = {
            "epoch": epoch,
            "loss": round(progress.loss / progress.images, 6),
            "accuracy": round(progress.correct / progress.images, 6),
            "val_loss": round(val_loss, 6),
            "val_accuracy": round(val_accuracy, 6),
            "learning_rate": float(schedule.learning_rate(self.job.config, self.job.counts.workers, epoch - 1)),
            "seconds": round(progress.seconds, 3),
            "images_per_s": round(progress.images / progress.seconds, 1),
        }
        if progress.step % self.job.counts.steps_per_epoch == 0:
            progress.loss = progress.images = progress.correct = progress.seconds = 0.0
        self.job.metrics.phase("saving", f"epoch {epoch}")
        self._record(epoch, row, self.splits.epoch())
        self._save_state()
        self._summary("RUNNING")
        self.job.metrics.epoch(row)

    def _record(self, epoch: int, row: dict[str, Any], phases: dict[str, float]) -> None:
        if self.events is not None:
            self.events.epoch(row)
            self.events.phases(epoch, phases)
            save_snapshot(self.model, self.job.run, epoch)
            self.history.add(row)

    def _validate(self) -> tuple[float, float]:
        """Mean loss and accuracy over all validation images: each worker its shard, one reduction."""
        self.job.metrics.phase("validating")
        images, sums = self.job.images["train"], np.zeros(3)
        for start in range(0, len(self._validation), VALIDATION_BATCH):
            part = self._validation[start : start + VALIDATION_BATCH]
            sums += self._evaluate_call(images.gather(part), images.labels[part].astype(np.int32)).numpy()
        loss, count, correct = self.cluster.sum(sums.astype(np.float32)).tolist()
        return loss / count, correct / count

    def _trained(self) -> None:
        """Count the time since training began, with validation and saving, in which steps wait as well."""
        now = time.monotonic()
        self.progress.seconds_training += now - self._training_since
        self._training_since = now

    def _check_weights(self) -> None:
        largest = (np.abs(array).max(initial=0) for array, number in zip(self._weights(), self._numbers, strict=True) if number)
        self._check_update(float(np.max([0.0, *largest])), "a weight")

    def _save_state(self) -> None:
        self._trained()
        self.progress.seconds_total = self._seconds_total()
        self.memories.save(self.progress.step, self.progress.attempt)
        if self.memories.memory:
            # All parts are there before the state is.
            self.cluster.sum(np.zeros(1, np.float32))
        if self.cluster.place.is_chief:
            self.states.save(self.variables, self.progress)

    def _seconds_total(self) -> float:
        return self._seconds_before + time.monotonic() - self.job.started

    def _weights(self) -> list[np.ndarray]:
        return [variable.value.numpy() for variable in self.model.weights]

    def _same_weights(self, when: str) -> list[str]:
        digests = self.cluster.digests(digest(self._weights()))
        if len(set(digests)) > 1:
            table = ", ".join(f"rank {rank}: {value[:12]}" for rank, value in enumerate(digests))
            raise ClusterError(f"weights differ between workers {when}: {table}")
        return digests

    def _end(self, stopped: bool) -> int:
        self._trained()
        by_rank = self._same_weights("at the end")
        stopped = stopped and self.progress.step < self.job.counts.total_steps
        state = "SUCCEEDED" if not stopped else "CANCELLED" if self.job.stop_marker.exists() or self._out_of_time() else "PREEMPTED"
        self._summary(state, by_rank)
        self.cluster.sum(np.zeros(1, np.float32))
        self.job.metrics.phase("ended", state)
        return PREEMPTED if stopped else DONE

    def _summary(self, state: str, by_rank: list[str] | None = None) -> None:
        if not self.cluster.place.is_chief:
            return
        progress, counts = self.progress, self.job.counts
        # An epoch under way may have a row already, where the run ended inside it.
        finished = progress.step // counts.steps_per_epoch
        steps_seconds = sum(row["seconds"] for row in self.history.rows if row["epoch"] <= finished) + progress.seconds
        summary = {
            "state": state,
            "workers": counts.workers,
            "epochs_done": finished,
            "epochs": counts.epochs,
            "steps": progress.step,
            "total_steps": counts.total_steps,
            "in_steps": self.job.config.train.steps is not None,
            "restarts": progress.restarts,
            "reduction": dataclasses.asdict(self.choice),
            "shares": self.shares if len(set(self.shares)) > 1 else None,
            "seconds_total": round(self._seconds_total(), 3),
            "seconds_training": round(progress.seconds_training, 3),
            "images_per_s": round(progress.images_total / steps_seconds, 1) if steps_seconds else None,
            "best": self.history.best(),
            "weights_sha256": by_rank[0] if by_rank else None,
            "weights_sha256_by_rank": by_rank,
        }
        write_json(self.job.run / "summary.json", summary)
