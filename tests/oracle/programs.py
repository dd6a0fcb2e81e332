"""Random small Keras programs: what each consists of, its data and its model."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import keras
import numpy as np
from keras import layers, optimizers

from tests.oracle.parts import (
    AFTER,
    AUGMENT,
    BODY,
    CALLBACKS,
    ENTRIES,
    INPUTS,
    LOSSES,
    METRICS,
    MODELS,
    OPTIMIZERS,
    OUTPUTS,
    SETTINGS,
    SPARSE,
    Own,
)


@dataclass(frozen=True)
class Program:
    """A program; the defaults are the smallest one."""

    seed: int = 0
    rows: int = 8
    batch: int = 8
    epochs: int = 1
    workers: int = 2
    inputs: tuple[str, ...] = ("numbers",)
    augment: tuple[str, ...] = ()
    """Of pictures."""
    body: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("numbers",)
    loss: tuple[str, ...] = ("mse",)
    metric: tuple[str, ...] = ("",)
    weighted: bool = False
    """Whether metrics are weighted ones."""
    weights: str = ""
    optimizer: str = "SGD"
    settings: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()
    step: str = ""
    per_call: int = 1
    validation: int = 0
    fit: tuple[str, ...] = ()
    """Arguments of a script's `fit`."""
    data: str = ""
    """What a script's `fit` is given: `dataset`, `generator`, or arrays. A generator is shuffled by Python's `random`: threads share it."""
    again: bool = False
    """Whether a script calls `fit` twice."""
    eager: bool = False
    way: str = "script"
    """`script`: by `lockstep.distribute`; `run`: by `train.yml -e model=`."""
    stop: int = 0
    """Steps after which a run stops, and goes on; 0: it does not."""
    hooks: bool = True
    """Whether a callback has hooks of batches."""
    tags: tuple[str, ...] = field(default=(), compare=False)


STEPS = ("", "", "", "", "", "", "", "", "own", "noise", "penalty", "clipped", "pairs", "teacher", "sharpness", "guide", *MODELS)
FIT: dict[str, dict[str, Any]] = {
    "split": {"validation_split": 0.3},
    "seldom": {"validation_freq": 2},
    "later": {"initial_epoch": 1},
    "some": {"steps_per_epoch": 1},
    "shuffle": {"shuffle": True},
}
RATES = ("scheduler", "plateau", "braking")
"""Callbacks that set the rate, which one optimizer has that no schedule gives."""
SWAPPING = "swapping"
STEPS_OF_EPOCH = 8
"""The most that a random program has."""


def made(seed: int) -> Program:
    """A random program."""
    draw = random.Random(seed)

    def some(of: Sequence[str], most: int, least: int = 0) -> tuple[str, ...]:
        return tuple(draw.sample(list(of), draw.randint(least, min(most, len(of)))))

    # Most of a program's time is tracing, by each worker: recurrent layers take several times as long as others, executions of several
    # batches twice as long.
    inputs = tuple(draw.choices(list(INPUTS), (14, 1, 1, 3, 2, 2, 2, 2))[0] for _ in range(draw.choice((1, 1, 1, 1, 1, 1, 2, 2, 3))))
    outputs = tuple(draw.choice(list(OUTPUTS)) for _ in range(draw.choice((1, 1, 1, 1, 1, 1, 2, 2, 3))))
    rows, way = draw.randint(3, 32), draw.choice(("script", "run"))
    # `lockstep.distribute` returns the model of one worker as it is.
    workers = draw.choices((1, 2, 3, 4, 5), (2 if way == "run" else 0, 12, 4, 1, 1))[0]
    optimizer, settings = draw.choice(OPTIMIZERS), some(list(SETTINGS), 2)
    epochs = draw.choice((1, 2, 2, 3))
    fit = some([one for one in FIT if one != "later" or epochs > 1], 2) if way == "script" and draw.random() < 0.3 else ()
    averages = optimizer != "Multi" and "ema" in settings and "accumulation" not in settings
    fixed = optimizer == "Multi" or "schedule" in settings
    program = Program(
        seed=seed,
        rows=rows,
        # Of one row there is no variance, and sums that travel as float32 show some.
        batch=draw.randint(max(2, -(-rows // STEPS_OF_EPOCH)), min(rows, 16)),
        epochs=epochs,
        workers=workers,
        inputs=inputs,
        augment=some(list(AUGMENT), 2) if "picture" in inputs else (),
        body=some(list(BODY), 3),
        outputs=outputs,
        loss=tuple(draw.choice(list(LOSSES[kind])) for kind in outputs),
        metric=tuple(draw.choice(["", *METRICS[kind]]) for kind in outputs),
        weighted=draw.random() < 0.2,
        weights=draw.choice(("", "", "rows", "classes" if outputs == ("kinds",) else "")),
        optimizer=optimizer,
        settings=settings,
        callbacks=some([one for one in CALLBACKS if one != SWAPPING and not (fixed and one in RATES)], 2),
        step=draw.choice(STEPS),
        per_call=draw.choice((1, 1, 1, 1, 2, 3)),
        validation=draw.choice((0, 0, draw.randint(1, 20))),
        fit=fit,
        data=draw.choice(("", "", "dataset", *(["generator"] if "shuffle" not in fit else []))) if way == "script" else "",
        again=way == "script" and draw.random() < 0.1,
        eager=draw.random() < 0.2,
        way=way,
        stop=draw.choice((0, 0, 0, draw.randint(1, 8))) if way == "run" else 0,
        hooks=draw.random() < 0.7,
    )
    # Only what averages its weights can swap them.
    return replace(program, callbacks=(*program.callbacks, SWAPPING)) if averages and draw.random() < 0.3 else program


def data_of(program: Program, rows: int, part: int) -> tuple[Any, ...]:
    """Rows for a program: `(x, y)` or `(x, y, sample_weight)`."""
    numbers = np.random.default_rng((program.seed, part))
    x = {f"in{index}": INPUTS[kind](numbers, rows) for index, kind in enumerate(program.inputs)}
    target = {"numbers": lambda: numbers.normal(size=(rows, 3)), "yes": lambda: numbers.integers(0, 2, (rows, 1)).astype("float64")}
    target["shares"] = lambda: np.eye(4)[numbers.integers(0, 4, rows)]
    target["kinds"] = lambda: numbers.integers(0, 4, rows)
    y = {f"out{index}": target[kind]() for index, kind in enumerate(program.outputs)}
    if len(y) == 1:
        (y,) = y.values()
    return (x, y, numbers.uniform(0, 2, rows)) if program.weights == "rows" else (x, y)


def is_sparse(program: Program, kind: str) -> bool:
    """Whether an input of a kind is sparse; tables of runs are not, and Keras takes none from a `PyDataset`."""
    return program.way == "script" and program.data != "generator" and kind in SPARSE


class Batches(keras.utils.PyDataset):
    """A program's rows in batches."""

    def __init__(self, nest: Any, rows: int, batch: int):
        super().__init__()
        self._nest, self._rows, self._batch = nest, rows, batch

    def __len__(self) -> int:
        return math.ceil(self._rows / self._batch)

    def __getitem__(self, index: int) -> Any:
        return keras.tree.map_structure(lambda array: array[index * self._batch : (index + 1) * self._batch], self._nest)


def optimizer_of(program: Program) -> Any:
    """The optimizer, with its settings."""
    kind = "Adam" if program.optimizer == "LossScale" else program.optimizer
    settings: dict[str, Any] = {"learning_rate": 0.02}
    for one in program.settings:
        settings |= SETTINGS[one]
    if "schedule" in program.settings:
        settings["learning_rate"] = optimizers.schedules.ExponentialDecay(0.02, 3, 0.7)
    clips = [one for one in ("clipnorm", "global_clipnorm", "clipvalue") if one in settings]
    for one in clips[1:]:
        del settings[one]
    if settings.get("use_ema") and settings.get("gradient_accumulation_steps"):
        del settings["use_ema"], settings["ema_momentum"], settings["ema_overwrite_frequency"]
    if kind == "Multi":
        settings.pop("gradient_accumulation_steps", None)
        two = [one(**settings) for one in (optimizers.SGD, optimizers.Adam)]
        return optimizers.MultiOptimizer(lambda one: two[one.path.startswith("out")])
    inner = getattr(optimizers, kind)(**settings)
    return optimizers.LossScaleOptimizer(inner, initial_scale=1024.0, dynamic_growth_steps=2) if program.optimizer == "LossScale" else inner


def model_of(program: Program) -> keras.Model:
    """The compiled model."""
    keras.utils.set_random_seed(program.seed)
    entries, merged = {}, []
    for index, kind in enumerate(program.inputs):
        example = INPUTS[kind](np.random.default_rng(0), 1)
        dtype = "int32" if kind in ("tokens", "words") else "float64"
        entry = keras.Input(example.shape[1:], name=f"in{index}", dtype=dtype, sparse=is_sparse(program, kind))
        entries[entry.name], x = entry, ENTRIES[kind]()(entry)
        for layer in [*(AUGMENT[one]() for one in program.augment if kind == "picture"), *AFTER[kind]()]:
            x = layer(x)
        merged.append(x)
    x = layers.Concatenate()(merged) if len(merged) > 1 else merged[0]
    for kind in program.body:
        x = BODY[kind]()(x)
    outputs = {
        f"out{index}": layers.Dense(OUTPUTS[kind], activation=_activation(kind, loss), name=f"out{index}")(x)
        for index, (kind, loss) in enumerate(zip(program.outputs, program.loss, strict=True))
    }
    loss = {name: LOSSES[kind][one]() for name, kind, one in zip(outputs, program.outputs, program.loss, strict=True)}
    metric = {
        name: [_named(METRICS[kind][one](), one)] if one else []
        for name, kind, one in zip(outputs, program.outputs, program.metric, strict=True)
    }
    weights: Any = {name: 1.0 / (1 + index) for index, name in enumerate(outputs)}
    single = len(outputs) == 1
    if single:
        outputs, loss, metric, weights = (next(iter(each.values())) for each in (outputs, loss, metric, weights))
    model = keras.Model(entries, outputs)
    if program.step:
        model = MODELS.get(program.step, Own)(model, program.step)
        model.build({name: (None, *entry.shape[1:]) for name, entry in entries.items()})
    settings = {"run_eagerly": program.eager, "steps_per_execution": program.per_call, "jit_compile": False}
    settings["weighted_metrics" if program.weighted else "metrics"] = metric
    model.compile(optimizer_of(program), loss=loss, loss_weights=None if single else weights, **settings)
    if program.optimizer == "ScheduleFreeAdamW" or program.step == "two":
        # It copies the weights, which Keras forgets where it does so while `fit` traces its step; or is given some of the weights first.
        model.optimizer.build(model.trainable_variables)
    return model


def _activation(kind: str, loss: str) -> str | None:
    """Of an output: what its loss takes."""
    if kind == "shares" or loss == "generalized" or (kind, loss) == ("kinds", "probable"):
        return "softmax"
    return "sigmoid" if loss in ("dice", "tversky", "probable") else None


def _named(metric: Any, name: str) -> Any:
    metric.name = name
    return metric


CHOICES: dict[str, Sequence[str] | dict[str, Any]] = {
    "inputs": INPUTS,
    "augment": AUGMENT,
    "body": BODY,
    "outputs": OUTPUTS,
    "optimizer": OPTIMIZERS,
    "settings": SETTINGS,
    "callbacks": CALLBACKS,
    "step": STEPS,
    "fit": FIT,
    "data": ("", "dataset", "generator"),
    "way": ("script", "run"),
}
"""What a program's fields may name."""


def of(values: dict[str, Any]) -> Program:
    """A program from JSON; ValueError names a field, or what it names, that there is not."""
    known = [one.name for one in fields(Program)]
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"{name}: no such field; there are: {', '.join(known)}")
        for one in value if isinstance(value, list) else [value]:
            if name in CHOICES and one not in CHOICES[name]:
                raise ValueError(f"{name}: {one!r} is none of: {', '.join(filter(None, dict.fromkeys(CHOICES[name])))}")
    return Program(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
