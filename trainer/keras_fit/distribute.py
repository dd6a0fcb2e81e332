"""Distribution of a compiled Keras model's `fit` and `evaluate` over all workers: the work of `lockstep.distribute(model)`.

Keras' own `fit` runs on every worker, with its callbacks and history. Every worker reads the same batches; layers take their own rows
of each (see `trainer.keras_step.whole_batch`). A batch is therefore the global batch, and the result is that of a single worker.
"""

import contextlib
import functools
import inspect
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from tensorflow.python.eager import context

from trainer.common.errors import RESTART, ClusterError, LockstepError
from trainer.keras_fit import dataset_reading
from trainer.keras_step import mixed_processors, rehearsal, whole_batch
from trainer.keras_step.mixed_processors import FromChief
from trainer.keras_step.optimizer import inner
from trainer.models.compiled_model import CompiledModel
from trainer.network import all_reduce, handshake, tf_strategy
from trainer.network.array_group import ArrayGroup, digest
from trainer.network.member import Member, address, named
from trainer.network.sockets_all_reduce import AHEAD, Direct
from trainer.user_code.callbacks import BATCH_HOOKS, on_worker, overrides, writes_only
from trainer.user_code.undo import is_users

START_S, SILENT_S = 1800.0, 600.0
"""Seconds within which all workers must call `distribute`; seconds after which a silent worker counts as lost."""
DIFFERENT = "the workers have different batches"
UNKNOWN = (
    "the data do not say how many batches they have: at their end, Keras' own fit counts one more step in optimizers, random numbers and "
    "what is a mean over batches, as a metric of one number; here they don't. Fix, to have the same: steps_per_epoch=BATCHES, or "
    "dataset.apply(tf.data.experimental.assert_cardinality(BATCHES))"
)
"""Message on data of unknown length."""
KINDS = ("train", "test")
DISTRIBUTED = "_self_distributed"
"""Attribute by which a model holds its distribution."""


class Peers(ArrayGroup):
    """Connections between the workers of a script's run."""

    def __init__(self, member: Member, direct: Direct):
        """Take existing connections."""
        self.member, self.direct = member, direct
        self.group = all_reduce.OnHost(direct)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Peers | None":
        """Connect with the workers in TF_CONFIG; None if there is no other worker.

        Raises:
            ClusterError: a worker did not come, or Lockstep did not start this process, which then has no secret.
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
        """Sum arrays as `ArrayGroup.sum` does; whole numbers are sent in two halves, which float32 holds exactly."""
        if values.dtype == np.float32:
            return self.direct.all_reduce([values])[0].copy()
        halves = np.ascontiguousarray(values, np.int32).view(np.uint16).astype(np.float32).ravel()
        low, high = self.direct.all_reduce([halves])[0].astype(np.uint32).reshape(-1, 2).T
        return (low + (high << np.uint32(16))).view(np.int32).reshape(values.shape)


@functools.cache
def _peers() -> Peers | None:
    """Connections of this process, made once."""
    connected = Peers.from_environment()
    if connected is not None:
        _end_with(connected.direct)
    return connected


def _end_with(direct: Direct) -> None:
    """End with RESTART if an error follows from the loss of a peer, so that the peer counts as the cause."""
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
    """Make `fit` and `evaluate` of a compiled model run on all workers; return the model, which one worker leaves unchanged.

    Args:
        model: compiled, equal on all workers; the chief's weights replace the others' when training begins.
        connected: the workers; by default those in TF_CONFIG.

    Raises:
        LockstepError: the model is not compiled.
        ClusterError: as `Peers.from_environment`.
    """
    if keras.backend.backend() != "tensorflow":
        raise LockstepError(
            f"lockstep.distribute(model): Keras' backend is {keras.backend.backend()}, and only TensorFlow's can be distributed; "
            "unset KERAS_BACKEND"
        )
    connected = connected or _peers()
    if not model.compiled:
        raise LockstepError("lockstep.distribute(model): the model is not compiled, so there is no step yet; call model.compile(...) first")
    if connected is None or of(model) is not None:
        return model
    if tf_strategy.multi_worker(model):
        tf_strategy.take_out(model)
    distributed = Distributed(model, connected)
    for kind in KINDS:
        setattr(model, f"{kind}_on_batch", distributed.alone(kind, getattr(model, f"{kind}_on_batch")))
    for kind in KINDS:
        make, step = distributed.function(kind), distributed.step(kind)
        setattr(model, f"make_{kind}_function", make)
        setattr(model, f"{kind}_step", step)
    vars(model)[DISTRIBUTED] = distributed
    model.train_function = model.test_function = None
    whole_batch.install(HOOKS)
    return model


def of(model: keras.Model) -> "Distributed | None":
    """The distribution of a model; None if the model was not distributed."""
    return vars(model).get(DISTRIBUTED)


class Distributed:
    """Steps and files of a model on one of several workers."""

    def __init__(self, model: keras.Model, connected: Peers):
        """Take the model's own methods before they are replaced."""
        self.model, self.peers = model, connected
        self._from_chief = FromChief(connected.group)
        mixed_processors.follow(connected, self._from_chief.begin, self._warn)
        self._group, self._placements = connected.group, rehearsal.Placements(model, connected, self._warn)
        self._by_rows = {kind: self._placements.by_rows(getattr(model, f"{kind}_step")) for kind in KINDS}
        self._saw_others, self._warn_once = False, functools.cache(self._warn)
        self._apart: list[int] = []
        """Ranks that differed from the chief at the last difference."""
        self._adds_up: dict[str, bool] = {}
        """True if a step adds up over rows, by kind of step, once tried."""
        self._tried: dict[str, Any] = {}
        """Compiled settings at the time of the trial, by kind of step: a model may be compiled again."""

    @property
    def chief(self) -> bool:
        """True if this worker writes files and prints progress."""
        return self.peers.member.is_chief

    def step(self, kind: str) -> Callable[[Any], Any]:
        """Make the replacement of `train_step` or `test_step`, for a batch that all workers have."""
        by_rows = self._by_rows[kind]

        def stepped(data: Any) -> Any:
            static, marks = whole_batch.leading(data).shape[0], [self._mark(data)]
            adds_up = self._adds_up.get(kind, False)
            return self._from_chiefs(by_rows.together(self._group, data, adds_up, static=static, marks=marks, check=_checked))

        return stepped

    def _from_chiefs(self, logs: Any) -> Any:
        """Results of a step if processors differ: the chief's, like all variables except those of optimizers."""
        variables = [variable.value for variable in [*self.model.weights, *CompiledModel(self.model).metric_states]]
        return tf.nest.pack_sequence_as(logs, self._from_chief.take(variables, tf.nest.flatten(logs)))

    def function(self, kind: str) -> Callable[..., None]:
        """Make the replacement of `make_train_function` or `make_test_function`, which traces again if a layer must see all rows."""
        make, name = getattr(self.model, f"make_{kind}_function"), f"{kind}_function"

        def made(force: bool = False) -> None:
            if getattr(self.model, name) is not None and not force:
                return
            # XLA can't compile an exchange.
            self.model.jit_compile = False
            make(force=True)
            run = getattr(self.model, name)

            def again(iterator: Any) -> Any:
                nonlocal run
                batches = _Batches(iterator, self.model)
                self._rehearse(kind, iterator.element_spec, batches.first)
                while True:
                    try:
                        return run(batches.given())
                    except whole_batch.SeesAll as error:
                        self._placements.see_all(error)
                    batches.again()
                    make(force=True)
                    run = getattr(self.model, name)
                    setattr(self.model, name, again)

            setattr(self.model, name, again)

        return made

    def _rehearse(self, kind: str, specs: Any, first: Callable[[], Any]) -> None:
        """Try the first step of a kind; all workers create the same variables, and the chief's values count."""
        compiled = [self.model._compile_loss, self.model._compile_metrics, self.model.optimizer]
        if self._tried.get(kind) == compiled:
            return
        self._tried[kind], self._adds_up[kind], before = compiled, False, len(self.variables)
        self._adds_up[kind] = self._placements.adds_up(self._by_rows[kind], specs, first)
        if len(self.variables) > before:
            self.agree()

    def _warn(self, what: str) -> None:
        if self.chief:
            print(f"lockstep: {what}", file=sys.stderr, flush=True)

    @property
    def variables(self) -> list[keras.Variable]:
        """Variables that training and evaluation change."""
        optimizer = self.model.optimizer.variables if self.model.optimizer is not None else []
        return list({id(variable): variable for variable in [*self.model.variables, *optimizer]}.values())

    def _mark(self, data: Any) -> tf.Tensor:
        """Digest of the whole batch, at this worker's position in a vector over all workers."""
        marks = [_mark_of(leaf) for leaf in tf.nest.flatten(data, expand_composites=True) if leaf is not None]
        mark = tf.cast(tf.math.floormod(functools.reduce(lambda all_, one: all_ * 31 + one, marks), MARKS), tf.float32)
        return tf.one_hot(self.peers.member.rank, self.peers.member.workers) * mark

    def call(self, method: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Call `fit`, `evaluate` or `predict` outside any strategy's scope; it prints only on the chief."""
        given = inspect.signature(method).bind(self.model, *arguments, **named)
        if not self.chief:
            given.arguments["verbose"] = 0
        if method.__name__ != "predict":
            given.arguments["callbacks"] = self.callbacks(given.arguments.get("callbacks"))
        # XLA can't compile an exchange.
        self.model.jit_compile = False
        with tf_strategy.outside(), self._explained() if method.__name__ == "fit" else contextlib.nullcontext():
            return method(*given.args, **given.kwargs)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Context for Keras' `fit`, which batches that differ between workers end with an explanation and a fix."""
        self.same_order()
        try:
            yield
        except tf.errors.InvalidArgumentError as error:
            if whole_batch.UNLIKE in str(error):
                raise LockstepError(f"{whole_batch.UNLIKE}. Fix: give what is not of a row to the model itself, not in the data") from None
            if DIFFERENT not in str(error):
                raise
            raise LockstepError(
                f"{DIFFERENT}, and each takes its rows of the same one. Fix: shuffle by a seed, as in keras.utils.set_random_seed(1) at "
                "the start of the script or dataset.shuffle(1000, seed=1), and read the same files everywhere"
            ) from None

    def alone(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make the replacement of `train_on_batch` or `test_on_batch`, which uses the model's own step as it was before `distribute`."""
        model, step, made, make = self.model, f"{kind}_step", f"{kind}_function", f"make_{kind}_function"
        own, cached = (getattr(model, step), getattr(model, make)), None

        def called(*arguments: Any, **named: Any) -> Any:
            nonlocal cached
            theirs = getattr(model, step), getattr(model, make), getattr(model, made)
            for name, value in zip((step, make, made), (*own, cached), strict=True):
                setattr(model, name, value)
            try:
                with tf_strategy.outside():
                    return function(*arguments, **named)
            finally:
                cached = getattr(model, made)
                for name, value in zip((step, make, made), theirs, strict=True):
                    setattr(model, name, value)

        return called

    def stop_together(self) -> None:
        """End training on all workers at once if one worker's callback requests the end: the others would wait for its next step."""
        self.model.stop_training = self.anywhere(bool(self.model.stop_training))

    def anywhere(self, here: bool) -> bool:
        """Return whether a flag is set on any worker; all workers call this at once."""
        return bool(self.peers.gather([here]).any())

    def callbacks(self, given: Any) -> Any:
        """The user's callbacks on this worker, and `_Agree`; a Keras list that `fit` passes to `evaluate` already has it."""
        kept = given.callbacks if isinstance(given, keras.callbacks.CallbackList) else [] if given is None else tf.nest.flatten(given)
        if any(isinstance(one, _Agree) for one in kept):
            return given
        noting = _Noting()
        here = [noting, *on_worker(kept, self.chief), _Agree(self, kept, noting)]
        if not isinstance(given, keras.callbacks.CallbackList):
            return here
        for one in (here[0], here[-1]):
            one.set_model(self.model)
        given.callbacks[:] = here
        return given

    def agree(self) -> None:
        """Take the chief's weights, optimizer, random states and first epoch."""
        # A step of the model's own builds it with the variables that it trains.
        builds = self.model.built and "train_step" not in CompiledModel(self.model).overridden()
        if builds and isinstance(self.model.optimizer, keras.optimizers.Optimizer) and not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)
        every = self.variables
        *values, epoch = self.peers.from_chief([*_numbers(every), np.array([self.model._initial_epoch or 0], np.int32)])
        for variable, value in zip(every, values, strict=True):
            variable.assign(value)
        self.model._initial_epoch = int(epoch[0])

    def agree_again(self, when: str) -> None:
        """If a callback has changed numbers on some worker, take the chief's, with a message."""
        others = self._others(_numbers(self.variables))
        if not others:
            return
        self.agree()
        # The optimizers' variables differ if processors do; a callback may act in every epoch.
        if others != self._apart and not self._from_chief.on:
            who = named(self.peers.member.hosts, others)
            why = "as where a callback acts on one worker or draws without a seed"
            self._warn(f"{when}, the weights or the optimizer of {who} differed from the chief's, {why}; all go on with the chief's")
        self._apart = others

    def _others(self, arrays: Sequence[np.ndarray]) -> list[int]:
        """Ranks whose arrays differ from the chief's."""
        digests = self.peers.digests(digest(arrays))
        return [rank for rank, one in enumerate(digests) if one != digests[0]]

    def saw_others(self, epoch: int, logs: Mapping[str, Any]) -> bool:
        """Return whether workers have different logs of an epoch; warn the first time."""
        numbers = [value for name in sorted(logs) if (value := np.asarray(logs[name])).dtype.kind in "biuf"]
        others = self._others(numbers)
        if others and not self._saw_others:
            self._saw_others, who = True, named(self.peers.member.hosts, others)
            self._warn(
                f"after epoch {epoch + 1}, the logs of {who} differ from the chief's, as where a step, a loss or an optimizer draws random "
                "numbers without a seed. Fix: keras.utils.set_random_seed(1) at the start of the script, numpy.random.default_rng(1)"
            )
        return bool(others)

    def unknown_length(self) -> None:
        """Warn once about the differences if data of unknown length have ended."""
        if not self.model.run_eagerly:
            self._warn_once(UNKNOWN)

    def same_order(self) -> None:
        """Make TensorFlow shuffle alike on all workers, with the script's own seed or the chief's."""
        seed = context.global_seed()
        drawn = np.random.default_rng().integers(1, 2**31 - 1) if seed is None else seed % 2**31
        row = np.array([seed is not None, drawn], np.int32)
        every = self.peers.gather(row)
        if (every != every[0]).any() or not every[0][0]:
            tf.random.set_seed(int(every[0][1]))
        # Restore the state of a script that sets no seed.
        drawing = json.dumps([random.getstate(), [*map(_plain, np.random.get_state(legacy=True))]])
        if (chiefs := self.peers.text_from_chief(drawing)) != drawing:
            (version, words, gauss), of_numpy = json.loads(chiefs)
            random.setstate((version, tuple(words), gauss))
            np.random.set_state(tuple(of_numpy))


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


class _Batches:
    """Batches of a call, some of which can be taken from the data before the call."""

    def __init__(self, iterator: Any, model: keras.Model):
        """Take a TensorFlow `iterator`."""
        self._iterator, self._model, self._taken, self._next = iterator, model, list[Any](), 0

    def first(self) -> Any:
        """The first batch; None if there is none, or if the batch is for several devices."""
        if isinstance(self._iterator, tf.data.Iterator):
            self._take()
        return self._taken[0] if self._taken else None

    def _take(self) -> None:
        for _ in range(self._model.steps_per_execution if not self._taken else 0):
            try:
                self._taken.append(next(self._iterator))
            except StopIteration:
                break

    def given(self) -> Any:
        """Argument of the call; eager steps, which may fail and be repeated, take batches that are kept."""
        if self._model.run_eagerly:
            self._take()
        if not self._taken:
            return self._iterator
        return self if self._model.run_eagerly else _iterator_of(self._taken, self._iterator.element_spec)

    def __iter__(self) -> "_Batches":
        return self

    def __next__(self) -> Any:
        if self._next == len(self._taken):
            raise StopIteration
        self._next += 1
        return self._taken[self._next - 1]

    def again(self) -> None:
        """Return the last batch again after an eager step has failed on it."""
        self._next = max(0, self._next - 1)


def _iterator_of(batches: Sequence[Any], spec: Any) -> Any:
    """Make a TensorFlow iterator over some batches with the spec of another iterator."""
    every = functools.reduce(lambda one, other: one.concatenate(other), map(tf.data.Dataset.from_tensors, batches))
    return iter(tf.data.experimental.from_variant(tf.data.experimental.to_variant(every), spec))


def _numbers(variables: Sequence[keras.Variable]) -> list[np.ndarray]:
    return [variable.numpy() for variable in variables]


def _checked(marks: tf.Tensor) -> Any:
    """Check the digests of a batch: either all workers go on with the step or none does, because their sums are equal."""
    return tf.control_dependencies([tf.debugging.assert_equal(marks, marks[0], message=DIFFERENT)])


MARKS = 2**23
"""Upper bound of the digests of batches, which float32 holds exactly."""
SPREADING = 0x9E3779B1 - 2**32
"""2**32 divided by the golden ratio, odd, as int32."""


def _mark_of(leaf: tf.Tensor) -> tf.Tensor:
    """Digest of a batch's tensor, in whole numbers because all processors add these alike; it depends on the order of the rows."""
    numbers = tf.convert_to_tensor(leaf)
    kinds = {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int32, 16: tf.int32}
    if numbers.dtype == tf.string:
        numbers = tf.strings.to_hash_bucket_fast(numbers, MARKS)
    elif numbers.dtype == tf.bool:
        numbers = tf.cast(numbers, tf.int8)
    bits = _mixed(tf.cast(tf.bitcast(numbers, kinds[numbers.dtype.size]), tf.int32))
    rows = tf.reduce_sum(tf.reshape(bits, [tf.shape(bits)[0], -1]), axis=1)
    return _mixed(tf.reduce_sum(rows * tf.range(1, tf.size(rows) + 1)))


def _mixed(numbers: tf.Tensor) -> tf.Tensor:
    """Mix whole numbers so that low bits depend on all bits: 0.0 and 1.0 have equal low bits (multiplicative hashing: Knuth, TAOCP 6.4)."""
    spread = numbers * SPREADING
    return tf.bitwise.bitwise_xor(spread, tf.bitwise.right_shift(spread, 15))


def _distributing(method: Callable[..., Any], /, model: keras.Model, *arguments: Any, **named: Any) -> Any:
    """Call a method of Keras' trainer, distributed if the model is; a model's own method may call it, too."""
    distributed = of(model)
    return method(model, *arguments, **named) if distributed is None else distributed.call(method, arguments, named)


HOOKS: whole_batch.Hooks = (*((TensorFlowTrainer, name, _distributing) for name in ("fit", "evaluate", "predict")), *dataset_reading.HOOKS)
"""Replaced functions, in the form of `whole.HOOKS`."""


class _Noting(keras.callbacks.Callback):
    """Callback that notes the logs of an epoch before any other callback changes them."""

    logs: Mapping[str, Any] = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras' interface
        """See the class."""
        self.logs = dict(logs or {})


class _Agree(keras.callbacks.Callback):
    """Callback that runs last, after the others have restored weights."""

    def __init__(self, distributed: Distributed, others: Sequence[keras.callbacks.Callback], noting: "_Noting"):
        """Take the user's callbacks on any worker (`others`), and the one that is called before them (`noting`)."""
        super().__init__()
        self._noting = noting
        self._distributed, self._training = distributed, False
        self._acts = any(map(is_users, others))
        """True if the user's own code runs at the hooks, or if workers may differ for another reason."""
        self._may_stop = overrides([one for one in others if not writes_only(one)], BATCH_HOOKS)

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras' interface
        """Let all workers begin alike."""
        self._training = True
        self._distributed.agree()
        if (self.params or {}).get("steps", 0) is None:
            self._distributed.unknown_length()
        self._may_stop = self._distributed.anywhere(self._may_stop or self.model.run_eagerly)
        optimizer = self.model.optimizer
        self._acts = self._distributed.anywhere(self._acts or (optimizer is not None and is_users(inner(optimizer))))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Let all workers stop after the same batch."""
        if self._may_stop:
            self._distributed.stop_together()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Let all workers begin an epoch alike."""
        if self._acts:
            self._distributed.agree_again(f"before epoch {epoch + 1}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Let all workers stop after the same epoch, with equal states."""
        if self._training:
            self._distributed.stop_together()
            self._acts = self._distributed.saw_others(epoch, self._noting.logs) or self._acts
            if self._acts:
                self._distributed.agree_again(f"after epoch {epoch + 1}")

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Mark the end of `fit`: a later `evaluate` is not part of it."""
        self._training = False

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Agree on the chief's weights if `evaluate` is not part of `fit`, which itself keeps workers alike."""
        if not self._training:
            self._distributed.agree()
        elif self.model._eval_epoch_iterator.num_batches is None:
            self._distributed.unknown_length()
