"""A program trained by `fit` alone and on several workers, which are threads of this process: what differs, in the smallest program."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import keras
import numpy as np
import scipy.sparse
import tensorflow as tf

from tests.oracle import running
from tests.oracle.parts import CALLBACKS
from tests.oracle.programs import FIT, Batches, Program, data_of, is_sparse, model_of
from trainer.common.errors import LockstepError
from trainer.keras_fit import distribute
from trainer.keras_step import rehearsal
from trainer.network.member import Member

TOLERANCE = 1e-6
"""Of float64 numbers, relative to the largest of an array."""
SUMS = 1e-5
"""Of the logs of a run, whose metrics' sums travel as float32; relative to numbers of at least 0.1."""
CANCELLED = 1e-4
"""As SUMS, of an R2Score, which divides by a difference of sums."""
SHAKEN = 1e-14
"""Change of the weights, relative to each, that no program should magnify to TOLERANCE."""
SLIGHT = 10
"""Times TOLERANCE; what differs by more is not called rounding where eager and traced steps differ, which have other reasons, too."""
ROUNDING = "magnifies rounding, as on one worker"
"""Of a program that differs from itself as much with weights changed by SHAKEN: its gradient is 0 but for rounding, and Lamb divides it.
Or of one whose eager and traced steps differ on one worker, too: where tanh is 1 but for its last bit, its gradient is nothing else."""
FAILING = "fit fails, too"
"""Begins what is said of a program that is none."""
REFUSED = "refused: "
"""Begins what is said of a program that the engine refuses with a sentence."""


class Seen(keras.callbacks.Callback):
    """Everything that Keras tells a callback."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def _note(self, hook: str) -> Callable[..., None]:
        def noted(*given: Any, **named: Any) -> None:
            logs = named.pop("logs", None) if "logs" in named else (given[-1] if given and isinstance(given[-1], dict) else None)
            numbers = [one for one in given if isinstance(one, int)]
            self.calls.append((hook, numbers, {key: np.asarray(value, np.float64) for key, value in (logs or {}).items()}))

        return noted


for _hook in (
    "train_begin",
    "train_end",
    "epoch_begin",
    "epoch_end",
    "train_batch_begin",
    "train_batch_end",
    "test_begin",
    "test_end",
    "test_batch_begin",
    "test_batch_end",
):
    setattr(Seen, f"on_{_hook}", lambda self, *given, _hook=_hook, **named: self._note(_hook)(*given, **named))


class SeenFromAfar(Seen):
    """Without the hooks of batches."""


for _hook in ("train_batch_begin", "train_batch_end", "test_batch_begin", "test_batch_end"):
    setattr(SeenFromAfar, f"on_{_hook}", getattr(keras.callbacks.Callback, f"on_{_hook}"))


def scripted(program: Program, model: keras.Model, seen: Seen) -> None:
    """Train by `fit` as a script does."""
    more: dict[str, Any] = {}
    if program.validation:
        held_out = _thinned(program, program.validation, 1, tf.sparse.from_dense)
        more["validation_data"] = tf.data.Dataset.from_tensor_slices(held_out).batch(program.batch)
    if program.weights == "classes":
        more["class_weight"] = {0: 0.5, 1: 2.0, 2: 1.0, 3: 1.5}
    for one in program.fit:
        more |= FIT[one]
    if "validation_data" in more or program.data:
        more.pop("validation_split", None)
    given = _thinned(program, program.rows, 0, tf.sparse.from_dense if program.data == "dataset" else scipy.sparse.csr_matrix)
    for epochs in dict.fromkeys((program.epochs, program.epochs + 1) if program.again else (program.epochs,)):
        seen_by = {"callbacks": [*(CALLBACKS[one]() for one in program.callbacks), seen]}
        model.fit(**_fed(program, given), epochs=epochs, verbose=0, **seen_by, **{"shuffle": False, **more})


def _thinned(program: Program, rows: int, part: int, sparse: Callable[[np.ndarray], Any]) -> tuple[Any, ...]:
    """As `data_of`, with sparse inputs as `sparse` makes them."""
    x, *others = data_of(program, rows, part)
    kinds = zip(x.items(), program.inputs, strict=True)
    return ({name: sparse(value) if is_sparse(program, kind) else value for (name, value), kind in kinds}, *others)


def _fed(program: Program, given: tuple[Any, ...]) -> dict[str, Any]:
    """What `fit` reads."""
    if program.data == "dataset":
        return {"x": tf.data.Dataset.from_tensor_slices(given).batch(program.batch)}
    if program.data == "generator":
        return {"x": Batches(given, program.rows, program.batch)}
    return {"x": given[0], "y": given[1], "sample_weight": given[2] if len(given) > 2 else None, "batch_size": program.batch}


def left(model: keras.Model, calls: Sequence[Any]) -> dict[str, np.ndarray]:
    """What `fit` leaves: weights, the optimizer's variables, history, and the arguments of callbacks."""
    found = {f"weight {number}": variable.numpy() for number, variable in enumerate(model.variables)}
    found |= {f"optimizer {number}": variable.numpy() for number, variable in enumerate(model.optimizer.variables)}
    found |= {f"history {name}": np.asarray(values) for name, values in sorted(model.history.history.items())}
    for number, (hook, numbers, logs) in enumerate(calls):
        found |= {f"{number} on_{hook}{numbers} {name}": value for name, value in sorted(logs.items())} or {
            f"{number} on_{hook}{numbers}": np.zeros(0)
        }
    return found


def by_fit(program: Program, model: keras.Model) -> dict[str, np.ndarray]:
    """What `fit` alone leaves."""
    seen = _seen(program)()
    (running.alone if program.way == "run" else scripted)(program, model, seen)
    return left(model, seen.calls)


def by_workers(program: Program) -> list[dict[str, np.ndarray]]:
    """What each of several workers leaves."""
    if program.way == "run":
        # What it has seen is part of a state.
        return [left(model, seen[-1].calls) for model, seen in running.workers(program, _seen(program))]
    threads = rehearsal.Threads(program.workers, patience_s=running.PATIENCE_S)
    models, hosts = [model_of(program) for _ in threads.members], [f"127.0.0.1:{member.rank}" for member in threads.members]

    def work(member: rehearsal.Member) -> dict[str, np.ndarray]:
        model = distribute.distribute(models[member.rank], distribute.Peers(Member(member.rank, hosts), member))
        seen = _seen(program)()
        scripted(program, model, seen)
        return left(model, seen.calls)

    return threads.run(work)


def _seen(program: Program) -> type[Seen]:
    return Seen if program.hooks else SeenFromAfar


def difference(one: dict[str, np.ndarray], other: dict[str, np.ndarray], way: str = "script", times: float = 1) -> str:
    """The first difference; empty if there is none. `way`: as of a `Program`; `times` the usual tolerance."""
    if list(one) != list(other):
        return f"other things: {sorted(set(one) ^ set(other))[:4]}"
    for name, value in one.items():
        found = other[name]
        if value.shape != found.shape:
            return f"{name}: shape {found.shape} for {value.shape}"
        scale = float(np.max(np.abs(value), initial=0.0, where=np.isfinite(value))) or 1.0
        summed = way == "run" and not name.startswith(("weight", "optimizer"))
        sums = CANCELLED if name.endswith("r2") else SUMS
        bound = sums * max(scale, 1e-1) if summed else TOLERANCE * max(scale, 1e-3)
        if not np.allclose(found, value, rtol=0, atol=times * bound, equal_nan=True):
            return f"{name}: {np.ravel(found)[:3]} for {np.ravel(value)[:3]}"
    return ""


def attempt(program: Program) -> str:
    """How a program on several workers differs from `fit`; empty if it does not, ROUNDING, FAILING or REFUSED if that can't be known.

    An error of `fit`'s own is one that both must have.
    """
    keras.backend.clear_session()
    try:
        alone: Any = by_fit(program, model_of(program))
    except Exception as error:
        alone = error
    try:
        every = by_workers(program)
    except Exception as error:
        return _told(program, error, alone)
    if isinstance(alone, Exception):
        return f"no error, where fit has: {alone!r:.300}"
    for rank, one in enumerate(every):
        if list(one) != list(every[0]) or any(not np.array_equal(every[0][name], one[name], equal_nan=True) for name in one):
            return f"rank {rank} and rank 0 differ: {difference(every[0], one) or 'in rounding'}"
    differs = difference(alone, every[0], program.way)
    return ROUNDING if differs and _rounds(program, alone, every[0]) else differs


def _rounds(program: Program, alone: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> bool:
    """Whether a program, of which `fit` left one thing and workers another, magnifies rounding."""
    if difference(alone, by_fit(program, shaken(model_of(program))), program.way):
        return True
    if program.way == "run" or difference(alone, found, times=SLIGHT):
        return False
    otherwise = replace(program, eager=not program.eager)
    return bool(difference(alone, by_fit(otherwise, model_of(otherwise))))


def _told(program: Program, error: Exception, alone: Any) -> str:
    """What is said of an error on several workers; `alone`: what `fit` alone left, or its error."""
    if type(error) is type(alone):
        return f"{FAILING}: {error!s:.200}"
    if isinstance(error, LockstepError):
        return f"{REFUSED}{error}"
    # A run's steps are traced.
    if program.way == "run" and program.eager and _fails(replace(program, eager=False)):
        return f"{FAILING} where it is traced: {error!s:.200}"
    return f"an error: {''.join(traceback.format_exception(error)[-3:])[-900:]}"


def _fails(program: Program) -> bool:
    """Whether `fit` alone fails."""
    try:
        by_fit(program, model_of(program))
    except Exception:
        return True
    return False


def kind_of(found: str) -> str:
    """What `attempt` found, in a word: `same`, `differs`, `refused`, `failing` or `rounding`."""
    for begins, kind in ((REFUSED, "refused"), (FAILING, "failing")):
        if found.startswith(begins):
            return kind
    return {"": "same", ROUNDING: "rounding"}.get(found, "differs")


def shaken(model: keras.Model) -> keras.Model:
    """The model with weights and gradients that differ in their last bits, as sums in another order would make them.

    A gradient that cancels to 0 in one order is as small as the rounding of what was added up in another, and Lion takes its sign.
    """
    signs = np.random.default_rng(0)
    for variable in model.trainable_variables:
        value = variable.numpy()
        variable.assign(value * (1 + SHAKEN * signs.choice((-1, 1), value.shape)))
    apply = model.optimizer.apply

    def one(gradient: Any) -> Any:
        if not isinstance(gradient, tf.Tensor):
            return gradient
        by = SHAKEN * signs.choice((-1.0, 1.0), gradient.shape)
        return gradient + tf.reduce_max(tf.abs(gradient)) * tf.constant(by, gradient.dtype)

    model.optimizer.apply = lambda gradients, variables=None: apply([one(each) for each in gradients], variables)
    return model


def smaller(program: Program) -> Iterator[Program]:
    """Programs that lack one thing of this."""
    first = Program(seed=program.seed)
    for one in fields(Program):
        value, least = getattr(program, one.name), getattr(first, one.name)
        if one.name in ("body", "settings", "callbacks", "augment", "fit"):
            yield from (replace(program, **{one.name: (*value[:index], *value[index + 1 :])}) for index in range(len(value)))
        elif one.name == "outputs" and len(value) > 1:
            for index in range(len(value)):
                kept = {
                    name: tuple(v for i, v in enumerate(getattr(program, name)) if i != index) for name in ("outputs", "loss", "metric")
                }
                yield replace(program, **kept)
        elif one.name == "inputs" and len(value) > 1:
            yield from (replace(program, inputs=(*value[:index], *value[index + 1 :])) for index in range(len(value)))
        elif one.name == "metric":
            yield from (replace(program, metric=(*value[:index], "", *value[index + 1 :])) for index, name in enumerate(value) if name)
        elif one.name not in ("seed", "tags", "outputs", "loss", "inputs") and value != least:
            yield replace(program, **{one.name: least})


def shrunk(program: Program) -> Program:
    """The smallest program that still differs."""
    while True:
        for one in smaller(program):
            if kind_of(attempt(one)) == "differs":
                program = one
                break
        else:
            return program
