"""A program trained as `train.yml` does: by `Trainer`, whose workers are threads of this process, stopped and continued."""

import contextlib
import io
import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from tests.oracle.parts import CALLBACKS
from tests.oracle.programs import Program, data_of, model_of
from trainer import models
from trainer.common.errors import PREEMPTED
from trainer.config import loading, schedule
from trainer.data.partition import EpochPlan
from trainer.data.spec import Leaf, Spec
from trainer.engine.job import Job
from trainer.keras_step import rehearsal
from trainer.network import all_reduce
from trainer.network.cluster import Cluster
from trainer.network.member import Member
from trainer.rundir.metrics_log import Metrics
from trainer.user_code import callbacks
from trainer.worker import backend, loop
from trainer.worker.loop import Trainer
from trainer.worker.validation import VALIDATION_BATCH

SEED = 5
"""Of the order of rows."""
PATIENCE_S = 300.0
"""Seconds for the slowest worker on a busy machine: all trace at once."""


class Threaded(Cluster):
    """A worker of several, which are threads; on one machine, as far as anybody asks."""

    def __init__(self, member: rehearsal.Member):
        """Join the others."""
        self.member, self.threads, self.direct = Member(member.rank, [f"127.0.0.1:{rank}" for rank in range(member.workers)]), 1, None
        self.devices, self.on_host, self.group = 1, True, all_reduce.OnHost(member)
        self.strategy = SimpleNamespace(num_replicas_in_sync=member.workers)
        self._arrays = member

    def connect(self, transport: str) -> None:
        """Nothing: they are."""

    def replica(self) -> int:
        """See `Cluster`."""
        return self.member.rank

    def local(self, result: Any) -> Any:
        """See `Cluster`."""
        return result

    def sum(self, values: np.ndarray) -> np.ndarray:
        """See `Cluster`."""
        return np.array(self._arrays.all_reduce([values])[0])


class Rows:
    """Examples in memory: those that train, then those of the validation."""

    def __init__(self, program: Program):
        """Take a program's."""
        parts = [weighed(program, data_of(program, rows, part)) for rows, part in ((program.rows, 0), (validation(program), 1))]
        self.nest = tf.nest.map_structure(lambda *every: np.concatenate(every), *parts)
        leaves, structure = tf.nest.flatten(self.nest), itertools.count()
        nest = tf.nest.map_structure(lambda _: next(structure), self.nest)
        self.spec = Spec([*nest], tuple(Leaf(f"leaf{at}", one.dtype.name, one.shape[1:]) for at, one in enumerate(leaves)))

    def __len__(self) -> int:
        return len(tf.nest.flatten(self.nest)[0])

    def gather(self, indices: np.ndarray) -> Any:
        """See `Examples`."""
        return tf.nest.map_structure(lambda array: array[indices], self.nest)


def validation(program: Program) -> int:
    """Rows of the validation, which a run always has: enough for a variance."""
    return max(3, program.validation)


def weighed(program: Program, data: tuple[Any, ...]) -> tuple[Any, ...]:
    """Weights of classes as weights of rows, which they are in Keras, too."""
    return (*data, np.array([0.5, 2.0, 1.0, 1.5])[data[1]]) if program.weights == "classes" else data


def batches(program: Program, rows: Rows) -> tf.data.Dataset:
    """Those of a run, in order: each time that it is iterated, those of the next epoch."""
    steps, epochs = -(-program.rows // program.batch), itertools.count(1)

    def of_epoch() -> Iterator[Any]:
        plan = EpochPlan(program.rows, program.batch, steps, SEED, next(epochs))
        return (rows.gather(plan.union(step)) for step in range(steps))

    specs = tf.nest.map_structure(lambda one: tf.TensorSpec([None, *one.shape[1:]], one.dtype), rows.nest)
    return tf.data.Dataset.from_generator(of_epoch, output_signature=specs).apply(tf.data.experimental.assert_cardinality(steps))


def alone(program: Program, model: keras.Model, seen: keras.callbacks.Callback) -> None:
    """Train by `fit` on the batches of a run.

    A run's steps are traced: in eager ones only, Keras weighs a short last batch in the loss of each of several outputs by its rows, and an
    elastic transformation distorts each image.
    """
    rows = Rows(program)
    model.run_eagerly = model.run_eagerly and len(program.outputs) == 1 and "elastic" not in program.augment
    held_out = rows.gather(np.arange(program.rows, len(rows)))
    model.fit(
        batches(program, rows),
        shuffle=False,
        epochs=program.epochs,
        validation_data=tf.data.Dataset.from_tensor_slices(held_out).batch(VALIDATION_BATCH),
        verbose=0,
        callbacks=[*(CALLBACKS[one]() for one in program.callbacks), seen],
    )


def workers(program: Program, see: Callable[[], Any]) -> list[tuple[keras.Model, list[Any]]]:
    """Train on several workers, which stop after `program.stop` steps and go on; of each its model, and what saw each launch."""
    rows, seen = Rows(program), [list[Any]() for _ in range(program.workers)]
    with tempfile.TemporaryDirectory() as folder, _patched():
        for stop in dict.fromkeys((program.stop, 0)):
            made = [model_of(program) for _ in seen]
            for each in seen:
                each.append(see())
            if _launch(program, rows, Path(folder), made, [each[-1] for each in seen], stop) != PREEMPTED:
                break
    return list(zip(made, seen, strict=True))


class _Here(threading.local):
    """What the function of the user's own would return on this worker."""

    model: keras.Model
    callbacks: list[keras.callbacks.Callback]


_HERE = _Here()


def _launch(program: Program, rows: Rows, folder: Path, made: Sequence[keras.Model], seen: Sequence[Any], stop: int) -> int:
    """Train until the end, or until `stop` steps have ended; exit code."""

    def work(member: rehearsal.Member) -> int:
        job = _job(program, rows, folder / str(member.rank))
        _HERE.model, _HERE.callbacks = made[member.rank], [*(CALLBACKS[one]() for one in program.callbacks), seen[member.rank]]
        trainer = Trainer(job, Threaded(member))
        job.stop_asked = lambda: 0 < stop <= trainer.progress.step
        return trainer.run()

    return int(rehearsal.Threads(program.workers, patience_s=PATIENCE_S).run(work)[0])


def _job(program: Program, rows: Rows, own: Path) -> Job:
    train = {
        "epochs": program.epochs,
        "global_batch": program.batch,
        "steps_per_call": 1 + program.seed % 4,
        "callbacks": {"file": "mine.py"},
    }
    given = {"train": train, "seed": SEED, "checkpoint": {"every_steps": program.seed % 3 + 1}, "reduction": {"name": "packed"}}
    given["model"] = {"file": "mine.py", "function": "build"}
    given["telemetry"] = {"profile_every": 0 if program.seed % 5 else 3}
    config, own_part = loading.build(given), own / "workers" / str(own.name)
    sizes = schedule.counts(config, program.workers, len(rows), validation(program))
    order = np.concatenate([np.arange(program.rows, len(rows)), np.arange(program.rows)])
    manifest: Any = SimpleNamespace(order=order, classes=[], table=object())
    return Job(config, sizes, own, manifest, rows, Metrics(own_part / "metrics.jsonl"), bool, own_part, time.monotonic())


def _model(*_: Any) -> keras.Model:
    return _HERE.model


def _callbacks(_: Any) -> list[keras.callbacks.Callback]:
    return _HERE.callbacks


@contextlib.contextmanager
def _patched() -> Iterator[None]:
    """The user's functions return what is here; nothing is printed, and the garbage of one program does not stay for the next."""
    with (
        mock.patch.object(models, "build", _model),
        mock.patch.object(callbacks, "_load", _callbacks),
        mock.patch.object(keras.config, "set_dtype_policy"),
        mock.patch.object(loop, "gc"),
        mock.patch.object(backend, "EventFile"),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        yield
