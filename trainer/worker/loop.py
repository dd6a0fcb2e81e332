"""One worker's training: join, restore, run Keras' own `fit` with the steps, validations and records below, and end."""

import gc
import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.checkpoint.background_save import PART, STATE, StateSaving
from trainer.checkpoint.resume import Resuming
from trainer.checkpoint.states import Memories, States, save_snapshot
from trainer.common.errors import DONE, PREEMPTED, RESTART, LockstepError
from trainer.config import schedule
from trainer.data.batch import Batch, Call
from trainer.data.feeder import calls
from trainer.engine import batch_shares
from trainer.engine.job import Job
from trainer.engine.measured_choices import EarlierChoice
from trainer.host.claims import MARK
from trainer.rundir import best_epoch
from trainer.rundir.best_epoch import RESTORED
from trainer.rundir.full_disk import Saver
from trainer.rundir.layout import existing_epochs, prune, snapshot_name, snapshot_path, wanted
from trainer.rundir.phases import ROOM, Phase
from trainer.step.step_sums import SAVE, STOP, StepSums
from trainer.worker import backend
from trainer.worker.finite_check import FiniteCheck
from trainer.worker.recorder import Recorder
from trainer.worker.shared_state import SharedState
from trainer.worker.validation import Validation

if TYPE_CHECKING:
    from trainer.network.cluster import Cluster
    from trainer.user_code.callbacks import Restored


class Interrupted(Exception):
    """Raised when all workers have agreed to leave `fit`: to stop, or to start again with a host that was lost."""

    def __init__(self, code: int):
        """Take the exit code, PREEMPTED or RESTART."""
        super().__init__()
        self.code = code


class Trainer:
    """One worker's training; the `Loop` of its callbacks."""

    def __init__(self, job: Job, cluster: "Cluster"):
        """Build the model and its surroundings under the strategy's scope."""
        self.job, self.cluster = job, cluster
        config = job.config
        job.metrics.phase(Phase.CONNECTING)
        cluster.connect(config.reduction.transport)
        job.metrics.phase(Phase.BUILDING)
        self.states = States(job.run / "state", config.checkpoint.keep, job.metrics.warning)
        self.resuming = Resuming(cluster, self.states, job.metrics.warning)
        self.engine = backend.engine(job, cluster, self.resuming.newest, EarlierChoice.of_run(job.run))
        self.model = self.engine.model
        self.memories = Memories(job.own / "memory", cluster.member, config.checkpoint.keep, self.engine.memory, job.metrics.warning)
        self.saver = Saver(job.metrics.warning, self._make_room)
        self._last: tuple[str, int, dict[str, Any]] | None = None
        """Name, epoch and row of the snapshot of the current weights; None inside an epoch."""
        self._unrecorded = 0.0
        """Seconds of calls since the last step ended."""
        self._logs: dict[str, Any] = {}
        """Logs of the epoch so far, as `fit` passes them to callbacks."""
        self._feed: Iterator[Any] = iter(())
        self._begun = 0
        """Number of the epoch's steps that have begun."""
        self._by_block = False
        """True if a call takes at most the steps between two batch hooks."""
        self._stops = self._saves = False
        """True if a stop or a save was requested with the last call and is not done yet."""
        self._epoch_rate = 0.0
        """Learning rate of the epoch, before callbacks change it at its end."""
        self._row: dict[str, Any] = {}
        """Row of history.csv of the last finished epoch."""
        self._prepare_data()

    def _prepare_data(self) -> None:
        shares, rank = ([1], 0) if self.engine.feeds_all else (self.engine.shares, self.cluster.member.rank)
        self._feeder = self.job.feeder(shares, rank)
        self.validation = Validation(self.job, self.engine, self.cluster)

    def run(self) -> int:
        """Train to the end or to a stop, and return DONE or PREEMPTED; raise Diverged for a NaN, tf.errors.OpError if a peer is lost."""
        self.job.metrics.phase(Phase.TRACING)
        self.engine.trace()
        gc.freeze()
        gc.enable()
        self.job.metrics.phase(Phase.RESTORING)
        counts, given = self.job.counts, self.job.config.train.callbacks
        self.callbacks = self.engine.callbacks(given, counts.epochs, counts.steps_per_epoch, self.cluster.member.is_chief)
        self.variables = [*self.engine.variables, *self.callbacks.variables]
        self._load_initial_weights()
        self.progress = self.resuming.restore(self.variables, self.memories)
        # Any worker may be lost, and any other one may be the next chief.
        saved, copy = self.progress.step, "all" if self.job.config.recovery.elastic else self.job.config.checkpoint.copy
        self.saving = StateSaving(self.cluster, self.states, self.memories, self.saver, saved, copy)
        self._remember()
        self.shared = SharedState(self.job, self.cluster, self.engine, self.callbacks, self.progress)
        self._seconds_before = self.progress.seconds_total
        self.recorder = Recorder(self.job, self.cluster.member.is_chief, self.saver, self.progress)
        self._stalled = self._has_stalled(self.recorder.history.rows)
        self._finite = FiniteCheck(self.job, self.engine, self.callbacks.ends_at_nan)
        self.shared.check_weights("at the start")
        self._summary("RUNNING")
        stopped, self._training_since, self._saved_at = False, time.monotonic(), time.monotonic()
        if self.cluster.member.is_chief:
            self._offer_existing()
        if self.progress.finished and not self._is_over():
            what = f"what {self.progress.restored} restored" if self.progress.restored else "the moving average of the weights"
            why = f"{what} had taken the place of the weights at the end of the epochs asked for before"
            self.progress.inexact, self.progress.finished, self.progress.restored = [*self.progress.inexact, why], False, ""
        try:
            if not self._is_over():
                self._fit()
        except Interrupted as interrupted:
            if interrupted.code == RESTART:
                return RESTART
            stopped = True
        return self._end(stopped)

    def _fit(self) -> None:
        epoch, done = divmod(self.progress.step, self.job.counts.steps_per_epoch)
        self.callbacks.attach(self, self.progress.callbacks, done)
        self.engine.fit(self, self.callbacks, epoch, len(self.validation.batches))

    def _offer_existing(self) -> None:
        """Offer snapshots to evaluators again, because they may have lost some; they skip those that they have evaluated."""
        done = self.progress.step // self.job.counts.steps_per_epoch
        for epoch in existing_epochs(self.job.run):
            if epoch <= done:
                self.engine.offer(epoch)

    def _make_room_for_host(self) -> None:
        """If a lost host is to join, end all workers at this epoch's end, when its state is saved, so that they start again with it."""
        if self.job.config.recovery.elastic and self.shared.any(self.job.room_asked()):
            self.saving.settle()
            self.job.metrics.phase(Phase.ENDED, ROOM)
            raise Interrupted(RESTART)

    def _load_initial_weights(self) -> None:
        """Load `train.weights` on the chief, whose weights all workers take at the start, unless there is a state."""
        job, given = self.job, self.job.config.train.weights
        if not given or not self.cluster.member.is_chief or self.resuming.begun:
            return
        if job.weights is None:
            raise LockstepError(f"weights={given['file']}: the run has no state yet, and the file is not there. Fix: -e weights=FILE")
        left = self.engine.load(job.weights, given, job.config.train)
        if left:
            print(f"weights={given['file']}: {len(left)} layers keep their own initial weights: {', '.join(left)}", flush=True)

    def _is_over(self) -> bool:
        return self.progress.ended or self._stalled or self.progress.step >= self.job.counts.total_steps

    def _has_stalled(self, rows: Sequence[dict[str, Any]]) -> bool:
        train = self.job.config.train
        return best_epoch.stalled(rows, train.monitor, train.patience)

    def _remember(self) -> None:
        """Store the measurements in the state, so that a resumed run keeps them."""
        if self.cluster.member.workers > 1:
            self.progress.method = self.engine.choice.name
        if self.job.config.train.batch_sizes == batch_shares.CALIBRATED:
            self.progress.shares = self.engine.shares

    def epoch_begins(self, epoch: int) -> None:
        """See `Loop`."""
        done = self.progress.step - epoch * self.job.counts.steps_per_epoch
        self._last, self._begun = None, done
        # A callback may have requested the end before the first batch; `fit` still takes that batch.
        asked = self.callbacks.anywhere and self.shared.any(bool(self.model.stop_training))
        self._by_block = self.callbacks.per_batch or asked
        self.job.metrics.phase(Phase.TRAINING, f"epoch {epoch + 1}")
        self._feed = self._timed(self._feeder.epoch(self.job.plan(epoch + 1), self._calls(epoch + 1)))
        if self.progress.metrics:
            # `fit` has reset the metrics.
            self.engine.results.show(self.progress.metrics)

    def train(self, last: int) -> dict[str, Any]:
        """See `Loop`. Without batch hooks, one call may take the steps of several batches."""
        while self._begun <= last and (fed := next(self._feed, None)) is not None:
            (call, batch), waited = fed
            self._begun = call.first + call.steps
            self._call(self.job.counts.epoch_of(self.progress.step), call, batch, waited)
            self.engine.trace_profiled()
            if self._saves and self._begun <= last:
                self._save_inside()
        return self._logs

    def batch_ends(self) -> None:
        """See `Loop`."""
        if self._by_block:
            self._ends(self.shared.any(bool(self.model.stop_training)))
        if self._ends_inside():
            self.model.stop_training = True
            if tables := self.engine.settle():
                sums = StepSums(np.concatenate(tables))
                self._record(self.job.counts.epoch_of(self.progress.step), sums, 0.0, self.engine.rate or 0.0)
        if self._saves:
            self._save_inside()

    def _ends(self, ended: bool) -> None:
        self.progress.ended, self.progress.ended_by = ended, self.callbacks.ended_by if ended else ""

    def _ends_inside(self) -> bool:
        """Return whether training ends inside this epoch, before its last step."""
        progress, counts = self.progress, self.job.counts
        return progress.ended or (progress.step >= counts.total_steps and progress.step % counts.steps_per_epoch > 0)

    def _save_inside(self) -> None:
        """Save the state as requested, and stop if requested; at an epoch's end, its record comes first."""
        if self._epoch_is_over():
            return
        self._saves = False
        self.shared.follow_chief()
        self._finite.check_weights(self.progress.step)
        self.job.metrics.phase(Phase.SAVING, f"step {self.progress.step}")
        self._save_state()
        self.job.metrics.phase(Phase.TRAINING, f"epoch {self.job.counts.epoch_of(self.progress.step)}")
        if self._stops:
            raise Interrupted(PREEMPTED)

    def steps_end(self) -> None:
        """See `Loop`."""
        self.shared.follow_chief()
        self._epoch_rate = self._rate(self.job.counts.epoch_of(self.progress.step - 1))

    def _epoch_is_over(self) -> bool:
        return self.progress.ended or self._ends_epoch(self.progress.step)

    def _ends_epoch(self, step: int) -> bool:
        return step % self.job.counts.steps_per_epoch == 0 or step >= self.job.counts.total_steps

    def _calls(self, epoch: int) -> Iterator[Call]:
        counts, config = self.job.counts, self.job.config
        offset = (epoch - 1) * counts.steps_per_epoch
        first, last = self.progress.step - offset, min(counts.steps_per_epoch, counts.total_steps - offset)
        uneven = last * counts.global_batch > counts.train_images and last == counts.steps_per_epoch
        every, profile_every = config.checkpoint.every_steps, self.engine.profile_every
        # Batch hooks run between calls.
        block = self.callbacks.block if self._by_block else counts.steps_per_epoch
        for start in range(first // block * block, last, block):
            end = min(start + block, last)
            given = config.train.steps_per_call, uneven and end == last, every, offset, profile_every, self.engine.warmup
            yield from calls(max(first, start), end, *given)

    @staticmethod
    def _timed(feed: Any) -> Any:
        """Yield the next batches with the seconds spent waiting for them."""
        while True:
            begun = time.monotonic()
            fed = next(feed, None)
            if fed is None:
                return
            yield fed, time.monotonic() - begun

    def _call(self, epoch: int, call: Call, batch: Batch, waited: float) -> None:
        begun = time.monotonic()
        rates = self._rates(epoch, call)
        sums, parts = self._train(call, batch, rates)
        (self._stops, save), every = sums.requests, self.job.config.checkpoint.every_steps
        begun_steps = (epoch - 1) * self.job.counts.steps_per_epoch + call.first + call.steps
        self._saves = self._stops or save or bool(every and begun_steps % every == 0)
        if self._saves or self._ends_epoch(begun_steps):
            sums = sums.followed_by(self.engine.settle())
        seconds = time.monotonic() - begun
        self._finite.check_losses(self.progress.step, sums, rates)
        self._unrecorded += seconds + waited
        if len(sums):
            self._record(epoch, sums, waited, float(rates[-1]))
        self.recorder.split(epoch, call, batch, parts, seconds, waited)
        self.saving.check()

    def _record(self, epoch: int, sums: StepSums, waited: float, rate: float) -> None:
        """Count finished steps, with the seconds since the last finished ones."""
        seconds, self._unrecorded = self._unrecorded, 0.0
        self._add(sums, seconds)
        self._logs = self.shared.logs(self.engine.results, self.progress.metrics)
        self.recorder.call(epoch, len(sums), sums.images, seconds, waited, rate, self._logs)

    def _train(self, call: Call, batch: Batch, rates: np.ndarray) -> tuple[StepSums, dict[str, float] | None]:
        stop = self.job.stop_asked() or self._out_of_time()
        asks = np.float32(STOP * stop + SAVE * self._save_is_due())
        return self.engine.train(call, batch._replace(asks=asks), rates, self.progress.step)

    def _save_is_due(self) -> bool:
        """Return whether the chief must request a save; all workers receive its request, so they save after the same step."""
        every = self.job.config.checkpoint.every_seconds
        late = every is not None and time.monotonic() - self._saved_at >= every
        return late and self.cluster.member.is_chief and not self.saving.busy

    def _add(self, sums: StepSums, seconds: float) -> None:
        progress = self.progress
        progress.step += len(sums)
        progress.metrics = self.engine.results.summed(progress.metrics, sums.metrics).tolist()
        progress.images, progress.images_total = progress.images + sums.images, progress.images_total + sums.images
        progress.seconds += seconds

    def _rate(self, epoch: int) -> float:
        """The learning rate at the start of an epoch; for a compiled model's own optimizer, its current rate."""
        rate = self.engine.rate
        return schedule.learning_rate(self.job.config, self.job.counts, epoch - 1) if rate is None else rate

    def _rates(self, epoch: int, call: Call) -> np.ndarray:
        counts, own = self.job.counts, self.engine.rate
        if own is not None:
            return np.full(call.steps, own, np.float32)
        steps = range(call.first, call.first + call.steps)
        times = (epoch - 1 + number / counts.steps_per_epoch for number in steps)
        return np.array([schedule.learning_rate(self.job.config, counts, at) for at in times], np.float32)

    def _out_of_time(self) -> bool:
        limit = self.job.config.train.time_limit
        return limit is not None and self.cluster.member.is_chief and self.job.elapsed + time.monotonic() - self.job.started > limit

    def epoch_ends(self, epoch: int, logs: dict[str, Any]) -> None:
        """See `Loop`; the last epoch is recorded at the end of the training, which may change the weights."""
        epoch += 1
        if self.cluster.member.workers > 1 and self.engine.profile_every:
            self.recorder.compare(epoch, self.cluster)
        self.engine.record(epoch)
        self._finite.check(self.progress.step, float(logs.get("val_loss", 0.0)), "the validation loss")
        self._finite.check_weights(self.progress.step)
        self._row = self.recorder.row(epoch, logs, self._epoch_rate)
        if not self._is_over():
            asked = bool(self.model.stop_training)
            self._ends(self.shared.any(asked) if self.callbacks.anywhere else asked)
        self._stalled = self._has_stalled([*self.recorder.history.rows, self._row])
        if self._is_over():
            self.model.stop_training = True
        else:
            self._finish_epoch(epoch)
            if self._stops:
                raise Interrupted(PREEMPTED)
            self._make_room_for_host()

    def train_ends(self, restored: "Restored | None") -> None:
        """See `Loop`."""
        self.progress.finished = self.engine.averages or restored is not None
        if restored is not None:
            self.progress.restored = restored.name
            self._row[RESTORED] = restored.epoch
        self._finish_epoch(self._row["epoch"])

    def _finish_epoch(self, epoch: int) -> None:
        progress, row = self.progress, self._row
        if progress.step % self.job.counts.steps_per_epoch == 0:
            progress.metrics, progress.images, progress.seconds = [], 0.0, 0.0
        self._saves = False
        self.job.metrics.phase(Phase.SAVING, f"epoch {epoch}")
        # The saver's thread frees space on a full disk, and so may the following lines.
        self.saving.settle()
        self.recorder.events(row)
        if self.cluster.member.is_chief:
            self._snapshot(epoch, row)
        self.recorder.add(row)
        if self.cluster.member.is_chief:
            prune(self.job.run, self.job.config.checkpoint.snapshots, self.recorder.history.rows, self.job.config.train.monitor)
        self._summary("RUNNING")
        self._save_state()
        self.recorder.epoch(row)

    def _snapshot(self, epoch: int, row: dict[str, Any]) -> None:
        policy = self.job.config.checkpoint.snapshots
        if wanted(policy, self.recorder.history.rows, row, self.job.config.train.monitor):
            self._last = snapshot_name(policy, epoch), epoch, row
            path, size = snapshot_path(self.job.run, epoch), _size(self.engine.weights)
            if self.saver.save(self._last[0], path, size, lambda: save_snapshot(self.model, self.job.run, epoch)):
                self.engine.offer(epoch)

    def validates(self, epoch: int) -> bool:
        """See `Loop`."""
        return (epoch + 1) % self.job.config.train.validate_every == 0 or self._is_over()

    def test(self, first: int, last: int) -> dict[str, Any]:
        """See `Loop`. Each worker takes some batches, then one all-reduce follows; with batch hooks, each worker takes all batches."""
        sums = self.validation.sums(first, last, in_order=self.callbacks.per_test_batch)
        return self.shared.logs(self.engine.validation_results, sums)

    def _trained(self) -> None:
        """Add the time since the last call, including validation and saving, during which steps wait."""
        now = time.monotonic()
        self.progress.seconds_training += now - self._training_since
        self._training_since = now

    def _save_state(self) -> None:
        self._trained()
        arrays = self.shared.arrays()
        self.progress.seconds_total, self.progress.history = self._seconds_total(), self.recorder.history.rows
        self.progress.callbacks = self.shared.callback_states()
        self.saving.save(lambda: [*arrays, *self.engine.read(self.callbacks.variables)], self.progress)
        self._saved_at = time.monotonic()

    def _make_room(self) -> bool:
        """Delete files that this worker can do without; its newest intact state stays."""
        unfinished = list((self.job.run / "checkpoints").glob(".part-*")) if self.cluster.member.is_chief else []
        for path in unfinished:
            path.unlink(missing_ok=True)
        return self.saving.free() or bool(unfinished)

    def _save_again(self) -> None:
        """Retry to save a run's essential files: state, snapshot and history."""
        if not self.saving.complete or self.saving.saved != self.progress.step:
            self._save_state()
            self.saving.settle()
        if self._last is not None and self._last[0] in self.saver.missing:
            self._snapshot(*self._last[1:])
        if "history.csv" in self.saver.missing:
            self.recorder.add(self.recorder.history.rows[-1])

    def _wait_for_evaluators(self) -> None:
        if left := self.engine.evaluated(lambda: self.job.stop_asked() or self._out_of_time()):
            epochs = ",".join(map(str, left))
            fix = f"Fix: ansible-playbook evaluate.yml -e run={self.job.run.name} -e epoch={epochs}"
            self.job.metrics.warning(f"epochs {epochs} are not evaluated: no evaluator has answered, or the run was stopped. {fix}")

    def _seconds_total(self) -> float:
        return self._seconds_before + time.monotonic() - self.job.started

    def _end(self, stopped: bool) -> int:
        self._trained()
        by_rank = self.shared.check_weights("at the end")
        self.saving.settle()
        stopped = stopped and not self._is_over()
        # One worker's request is enough: others may receive theirs later, and only the chief looks at the clock.
        asked = self.shared.any((self.job.own / MARK).exists() or self._out_of_time())
        state = "SUCCEEDED" if not stopped else "CANCELLED" if asked else "PREEMPTED"
        self._save_again()
        if not stopped:
            self._wait_for_evaluators()
        needed = [PART, STATE, "history.csv", "summary.json", *([self._last[0]] if self._last is not None else [])]
        self._summary(state if not set(needed) & set(self.saver.missing) else "FAILED", by_rank)
        self.cluster.sum(np.zeros(1, np.float32))
        self.saver.check(needed, f"at step {self.saving.saved:,}" if self.saving.saved else "from the start")
        self.job.metrics.phase(Phase.ENDED, state)
        return PREEMPTED if stopped else DONE

    def _summary(self, state: str, by_rank: list[str] | None = None) -> None:
        if self.cluster.member.is_chief:
            self.recorder.summary(state, self._stalled, self._seconds_total(), self.engine.choice, self.engine.shares, by_rank)


def _size(arrays: Sequence[Any]) -> int:
    """Bytes of tensors or arrays, all of 32-bit numbers."""
    return sum(4 * math.prod(array.shape) for array in arrays)
