"""One compiled Keras model whose `fit` and `evaluate` are those of all workers: what `lockstep.distribute(model)` does.

Keras' own `fit` runs on every worker, with its callbacks and history. Every worker reads the same batches and takes its rows of each;
`Synchronous` makes the step that of the whole batch. So a batch is the global one, and the result is that of one worker with it.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from trainer import collective, global_loss, handshake, keras_metrics, strategy
from trainer.agreement import Agreement
from trainer.callbacks import WRITERS
from trainer.direct import AHEAD, Direct
from trainer.errors import RESTART, ClusterError, LockstepError
from trainer.member import Member, address
from trainer.synchronous import Synchronous

START_S, SILENT_S = 1800.0, 600.0
"""Seconds within which all workers must call `distribute`; seconds after which one that sends nothing is lost."""
DIFFERENT = "the workers have different batches"


class Peers(Agreement):
    """The workers of a script's run, connected with each other."""

    def __init__(self, member: Member, direct: Direct):
        """Use connections that are there."""
        self.member, self.direct = member, direct
        self.all_reduce = collective.direct(direct)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Peers | None":
        """Connect with the workers that TF_CONFIG names; None if there is no other.

        Raises:
            ClusterError: a worker did not come, or this process was not started by Lockstep and has no secret to know them by.
        """
        member = Member.from_environment(environment) if environment.get("TF_CONFIG") else None
        if member is None or member.workers == 1:
            return None
        names = ("LOCKSTEP_PEERS", "LOCKSTEP_SECRET")
        if missing := [name for name in names if name not in environment]:
            raise ClusterError(
                f"TF_CONFIG names {member.workers} workers, and {' and '.join(missing)} is not set: workers know each other by what "
                "Lockstep gives them. Fix: start them with ansible-playbook train.yml -e script=FILE.py, or unset TF_CONFIG"
            )
        secret = bytes.fromhex(Path(environment["LOCKSTEP_SECRET"]).read_text(encoding="ascii"))
        addresses = [address(peer) for peer in environment["LOCKSTEP_PEERS"].split(",")]
        sockets = handshake.meet(member.rank, addresses, secret, START_S)
        return cls(member, Direct(member.rank, sockets, SILENT_S, member.hosts, AHEAD))

    def sum(self, values: np.ndarray) -> np.ndarray:
        """As `Agreement.sum`; whole numbers travel as halves, which float32 holds exactly."""
        if values.dtype == np.float32:
            return self.direct.all_reduce([values])[0].copy()
        halves = np.ascontiguousarray(values, np.int32).view(np.uint16).astype(np.float32).ravel()
        low, high = self.direct.all_reduce([halves])[0].astype(np.uint32).reshape(-1, 2).T
        return (low + (high << np.uint32(16))).view(np.int32).reshape(values.shape)


@functools.cache
def peers() -> Peers | None:
    """This process' connections, made once."""
    connected = Peers.from_environment()
    if connected is not None:
        _end_with(connected.direct)
    return connected


def _end_with(direct: Direct) -> None:
    """End with RESTART where an error follows from the loss of a peer: that one is to blame."""
    before = sys.excepthook

    def ended(kind: Any, error: Any, trace: Any) -> None:
        before(kind, error, trace)
        if direct.lost is not None:
            sys.stdout.flush()
            fix = f"Fix: ansible-playbook train.yml -e run={os.environ.get('LOCKSTEP_RUN', 'NAME')} starts all again"
            print(f"lockstep: {direct.lost}; this worker ends, too. {fix}", file=sys.stderr, flush=True)
            os._exit(RESTART)

    sys.excepthook = ended


def distribute(model: keras.Model, connected: Peers | None = None) -> keras.Model:
    """Make `fit` and `evaluate` of a compiled model those of all workers; the same model, unchanged where there is one worker.

    Args:
        model: compiled, the same on all workers; the chief's weights replace the others' when training begins.
        connected: the workers; those that TF_CONFIG names by default.

    Raises:
        LockstepError: the model is not compiled.
        ClusterError: as `Peers.from_environment`.
    """
    if keras.backend.backend() != "tensorflow":
        raise LockstepError(
            f"lockstep.distribute(model): Keras' backend is {keras.backend.backend()}, and only TensorFlow's can be distributed; "
            "unset KERAS_BACKEND"
        )
    connected = connected or peers()
    if not model.compiled:
        raise LockstepError("lockstep.distribute(model): the model is not compiled, so there is no step yet; call model.compile(...) first")
    if connected is None or isinstance(vars(model).get("fit"), _Fit):
        return model
    if strategy.multi_worker(model):
        strategy.take_out(model)
    distributed = Distributed(model, connected)
    for kind in ("train", "test"):
        setattr(model, f"{kind}_on_batch", distributed.alone(kind, getattr(model, f"{kind}_on_batch")))
    model.train_step, model.test_step = distributed.train_step, distributed.test_step
    model._get_metrics_result_or_logs = distributed.results
    model.fit = _Fit(distributed, model.fit)
    model.evaluate = distributed.method(model.evaluate, distributed.callbacks)
    model.predict = distributed.method(model.predict)
    model.train_function = model.test_function = None
    return model


class Distributed:
    """A model's steps, logs and files as those of one of several workers."""

    def __init__(self, model: keras.Model, connected: Peers):
        """Take the model's own methods, which are about to be replaced."""
        self.model, self.peers = model, connected
        self.synchronous = Synchronous(model, connected.all_reduce)
        self._results = model._get_metrics_result_or_logs
        self._seeded = False
        with strategy.outside():
            self._stop_asked, self._stop_agreed = (tf.Variable(0.0, trainable=False) for _ in range(2))

    @property
    def chief(self) -> bool:
        """Whether this worker writes files and prints progress."""
        return self.peers.member.is_chief

    def train_step(self, data: Any) -> dict[str, Any]:
        """`train_step` of the whole batch, of which this worker takes its rows."""
        part, share = self._part(data)
        logs, (marks, stops) = self.synchronous.train_step(part, share, [self._mark(data), self._stop_asked[tf.newaxis]])
        self._stop_agreed.assign(stops[0])
        # Identical sums, so all workers stop here or none.
        with tf.control_dependencies([tf.debugging.assert_equal(marks, marks[0], message=DIFFERENT)]):
            return self._whole(logs, share) if global_loss.overridden(self.model) else {k: tf.identity(v) for k, v in logs.items()}

    def test_step(self, data: Any) -> dict[str, Any]:
        """`test_step` of the whole batch."""
        return self.synchronous.test_step(*self._part(data))

    def _part(self, data: Any) -> tuple[Any, tf.Tensor]:
        """This worker's rows of a batch, at least one, and their share of it; 0 if there are fewer rows than workers."""
        if any(isinstance(leaf, tf.SparseTensor | tf.RaggedTensor) for leaf in tf.nest.flatten(data)):
            raise LockstepError(
                "a batch has sparse or ragged tensors, whose rows can't be divided; make them dense, as in dataset.map(lambda x, y: "
                "(tf.sparse.to_dense(x), y)) or x.to_tensor()"
            )
        rank, workers = self.peers.member.rank, self.peers.member.workers
        rows = next(tf.shape(leaf)[0] for leaf in tf.nest.flatten(data) if leaf is not None)
        start, stop = rows * rank // workers, rows * (rank + 1) // workers
        end = tf.maximum(stop, start + 1)
        return _each(lambda leaf: leaf[start:end], data), tf.cast((stop - start) / rows, tf.float32)

    def _mark(self, data: Any) -> tf.Tensor:
        """A digest of the whole batch, at this worker's place in a vector of all workers'."""
        marks = [_mark_of(leaf) for leaf in tf.nest.flatten(data) if leaf is not None]
        mark = tf.cast(tf.math.floormod(functools.reduce(lambda all_, one: all_ * 31 + one, marks), MARKS), tf.float32)
        return tf.one_hot(self.peers.member.rank, self.peers.member.workers) * mark

    def _whole(self, logs: dict[str, Any], share: tf.Tensor) -> dict[str, Any]:
        """What a model's own `train_step` returns, as means over all rows; metrics are summed at the end of an epoch."""
        known = {metric.name for metric in self.model.metrics}
        names = [name for name in logs if name not in known]
        if not names:
            return logs
        sums = self.peers.all_reduce([tf.cast(tf.reduce_mean(logs[name]), tf.float32)[tf.newaxis] * share for name in names])
        return logs | {name: total[0] for name, total in zip(names, sums, strict=True)}

    def results(self, logs: Any) -> Any:
        """Metrics over all workers' rows, once the epoch has ended: their states are sums."""
        variables = keras_metrics.states(self.model)
        flat = [np.ravel(array).astype(np.float32) for array in [*_numbers(variables), self._stop_asked.numpy()]]
        *parts, stops = np.split(self.peers.sum(np.concatenate(flat)), np.cumsum([part.size for part in flat])[:-1])
        for variable, part in zip(variables, parts, strict=True):
            variable.assign(part.reshape(variable.shape).astype(variable.numpy().dtype))
        self._stop_agreed.assign(stops[0])
        self.stop_together()
        result = self._results(logs)
        if not isinstance(result, dict):
            return result
        # A `train_step` may return some of the metrics, as they were on this worker.
        return result | {name: value for name, value in self.model.get_metrics_result().items() if name in result}

    def method(self, function: Callable[..., Any], wrapped: Callable[[Any], list[Any]] | None = None) -> Callable[..., Any]:
        """A method of the model that is in no strategy's scope and prints on the chief only; `wrapped` changes its callbacks."""

        def called(*arguments: Any, **named: Any) -> Any:
            given = inspect.signature(function).bind(*arguments, **named)
            if not self.chief:
                given.arguments["verbose"] = 0
            if wrapped is not None:
                given.arguments["callbacks"] = wrapped(given.arguments.get("callbacks"))
            # XLA can't compile an exchange.
            self.model.jit_compile = False
            with strategy.outside():
                return function(*given.args, **given.kwargs)

        return called

    def alone(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`train_on_batch` or `test_on_batch` with the model's own step, which `distribute` has not replaced yet."""
        model, step, made = self.model, f"{kind}_step", f"{kind}_function"
        own, cached = getattr(model, step), None

        def called(*arguments: Any, **named: Any) -> Any:
            nonlocal cached
            theirs = getattr(model, step), getattr(model, made)
            setattr(model, step, own)
            setattr(model, made, cached)
            try:
                with strategy.outside():
                    return function(*arguments, **named)
            finally:
                cached = getattr(model, made)
                setattr(model, step, theirs[0])
                setattr(model, made, theirs[1])

        return called

    def stop_together(self) -> None:
        """Let the end of training that one worker's callback asks for wait until all know of it: otherwise others wait for its steps."""
        agreed = self._stop_agreed.numpy() > 0
        if getattr(self.model, "stop_training", False) and not agreed:
            self._stop_asked.assign(1.0)
        self.model.stop_training = bool(agreed)

    def forget_stop(self) -> None:
        """Nobody has asked for the end of a training that begins."""
        for variable in (self._stop_asked, self._stop_agreed):
            variable.assign(0.0)

    def callbacks(self, given: Any) -> Any:
        """A user's callbacks on this worker; Keras' own list, which `fit` hands to `evaluate`, stays."""
        if isinstance(given, keras.callbacks.CallbackList):
            return given
        every = [] if given is None else tf.nest.flatten(given)
        return [*(one for one in every if self.chief or not isinstance(one, WRITERS)), _Agree(self)]

    def agree(self) -> None:
        """Take the chief's weights, optimizer and first epoch; random draws of layers (Dropout) differ from worker to worker."""
        own = {id(variable): variable for layer in self.model._flatten_layers() for variable in _random_states(layer)}
        optimizer = self.model.optimizer.variables if self.model.optimizer is not None else []
        shared = {id(variable): variable for variable in [*self.model.variables, *optimizer]}
        kept = [variable for key, variable in shared.items() if key not in own]
        *values, epoch = self.peers.from_chief([*_numbers(kept), np.array([self.model._initial_epoch or 0], np.int32)])
        for variable, value in zip(kept, values, strict=True):
            variable.assign(value)
        self.model._initial_epoch = int(epoch[0])
        if not self._seeded:
            self._seeded = True
            for variable, value in zip(own.values(), self.peers.from_chief(_numbers(list(own.values()))), strict=True):
                variable.assign(value + np.array([self.peers.member.rank * SPREAD, 0], value.dtype))

    def same_order(self) -> None:
        """Let TensorFlow shuffle alike on all workers: by the script's own seed, or by one of the chief's."""
        seed = context.global_seed()
        drawn = np.random.default_rng().integers(1, 2**31 - 1) if seed is None else seed % 2**31
        row = np.array([seed is not None, drawn], np.int32)
        every = self.peers.gather(row)
        if (every != every[0]).any() or not every[0][0]:
            tf.random.set_seed(int(every[0][1]))


def _random_states(layer: keras.Layer) -> list[keras.Variable]:
    return [generator.state for generator in layer._seed_generators]


def _numbers(variables: Sequence[keras.Variable]) -> list[np.ndarray]:
    return [variable.numpy() for variable in variables]


MARKS = 2**23
"""Digests of batches are below this, and float32 holds them exactly."""
SPREADING = 0x9E3779B1 - 2**32
"""2**32 divided by the golden ratio, odd, as int32."""
SPREAD = 7_919
"""Between the seeds of two workers' layers."""


def _each(function: Callable[[Any], Any], data: Any) -> Any:
    """A structure of tensors, changed; None stays."""
    return tf.nest.map_structure(lambda leaf: None if leaf is None else function(leaf), data)


def _mark_of(leaf: tf.Tensor) -> tf.Tensor:
    """A digest of a batch's tensor in whole numbers, which all processors add up alike; it depends on the order of the rows."""
    numbers = tf.convert_to_tensor(leaf)
    kinds = {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int32}
    if numbers.dtype == tf.string:
        numbers = tf.strings.to_hash_bucket_fast(numbers, MARKS)
    elif numbers.dtype == tf.bool:
        numbers = tf.cast(numbers, tf.int8)
    bits = _mixed(tf.cast(tf.bitcast(numbers, kinds[numbers.dtype.size]), tf.int32))
    rows = tf.reduce_sum(tf.reshape(bits, [tf.shape(bits)[0], -1]), axis=1)
    return _mixed(tf.reduce_sum(rows * tf.range(1, tf.size(rows) + 1)))


def _mixed(numbers: tf.Tensor) -> tf.Tensor:
    """Whole numbers whose low bits depend on all: those of 0.0 and 1.0 are alike (multiplicative hashing: Knuth, TAOCP 6.4)."""
    spread = numbers * SPREADING
    return tf.bitwise.bitwise_xor(spread, tf.bitwise.right_shift(spread, 15))


class _Fit:
    """`fit` on one of several workers."""

    def __init__(self, distributed: Distributed, fit: Callable[..., Any]):
        self._distributed, self._fit = distributed, distributed.method(fit, distributed.callbacks)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """As Keras' `fit`; `batch_size` is of all workers together."""
        self._distributed.same_order()
        try:
            return self._fit(*arguments, **named)
        except tf.errors.InvalidArgumentError as error:
            if DIFFERENT not in str(error):
                raise
            raise LockstepError(
                f"{DIFFERENT}, and each takes its rows of the same one. Fix: shuffle by a seed, as in keras.utils.set_random_seed(1) at "
                "the start of the script or dataset.shuffle(1000, seed=1), and read the same files everywhere"
            ) from None


class _Agree(keras.callbacks.Callback):
    """Runs when all others have restored what they restore."""

    def __init__(self, distributed: Distributed):
        super().__init__()
        self._distributed, self._training = distributed, False

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras' interface
        """All workers begin alike."""
        self._training = True
        self._distributed.forget_stop()
        self._distributed.agree()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """All workers stop after the same batch, the next one."""
        self._distributed.stop_together()

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """The same where `evaluate` is not part of `fit`, which keeps them alike."""
        if not self._training:
            self._distributed.agree()
