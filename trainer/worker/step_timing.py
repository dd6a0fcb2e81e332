"""Timing of a worker's own part of a training step, alone: the basis of a prediction.

It times one step with nothing to send, and one step per possible reduction, with sums that return at once. The work of the exchange
itself is timed separately, by number of workers.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainer.config.schema import Config, Reduction
from trainer.data import transform
from trainer.data.spec import STRING, Leaf, Spec
from trainer.network import all_reduce
from trainer.network.cluster import Cluster
from trainer.network.loopback import Echo, exchange_seconds
from trainer.network.member import Member
from trainer.network.sockets_all_reduce import Arrays
from trainer.reduction import chain
from trainer.reduction.cost_model import DIRECT, TENSORFLOW, GradientTraffic
from trainer.reduction.method import Setting
from trainer.step import batch_arrays, build_step, worker_step
from trainer.step.program import Program

STEPS = 8
"""Steps between two returns to Python, the default in training."""
EXCHANGE_S = 0.3
"""Seconds over which the exchange of each number of workers is timed."""
MOST_COUNTS = 8
"""Most numbers of workers for which the exchange is timed; other numbers lie between two of them."""
VARIED = 32
"""Length used for a varying dimension."""


def measure(config: Config, spec: Spec, classes: int, batch: int, workers: int, threads: int, seconds: float) -> dict[str, Any]:
    """Measure a worker with `batch` random examples, after the warm-up.

    Returns:
        `batch`, `step_seconds` (median over calls, of a worker that sends nothing), `images_per_s`, `transport`, and `methods`, empty
        for one worker. Each method, by name, has `step_seconds` with its own computing, `sums` (bytes of each all-reduce of a step) and
        `exchange_seconds` (the exchange's own work, by number of workers from 2; empty if TensorFlow sends).
    """
    cluster = Cluster(Member(0, ["alone"]), threads)
    built = build_step.build(cluster, config, classes, spec)
    fed = transform.spec_of(config, spec)
    # Rate 0: random labels must not change the weights.
    arguments = batch_arrays.full(random_examples(fed, classes, (STEPS, batch)), batch * workers, fed), np.zeros(STEPS, np.float32)
    transport = DIRECT if cluster.on_host and config.reduction.transport != "tensorflow" else TENSORFLOW
    methods: dict[str, Any] = {}
    if isinstance(built, Program):
        alone = _seconds(built, arguments, seconds)
        methods = {"packed": _sent_once(built, alone, workers)} if workers > 1 else {}
    else:
        alone = _seconds(build_step.assemble(built, config, dataclasses.replace(config.reduction, name="packed")), arguments, seconds)
        names = _candidates(config.reduction, built.shapes) if workers > 1 else ()
        for name in names:
            methods[name] = _method(built, config, dataclasses.replace(config.reduction, name=name), workers, transport, arguments, seconds)
    return {"batch": batch, "step_seconds": alone, "images_per_s": batch / alone, "transport": transport, "methods": methods}


def random_examples(spec: Spec, classes: int, count: tuple[int, ...]) -> tuple[Any, ...]:
    """Meaningless examples `[*count, ...]`: images with classes, normal numbers, and zeros for other integers, which may be indices."""
    random = np.random.default_rng(0)

    def values(leaf: Leaf) -> np.ndarray:
        shape = (*count, *(side or VARIED for side in leaf.shape))
        if leaf.dtype == STRING:
            return np.full(shape, b"", object)
        if leaf.dtype == "uint8":
            return random.integers(0, 256, shape, dtype=np.uint8)
        if np.issubdtype(leaf.dtype, np.floating):
            return random.standard_normal(shape).astype(leaf.dtype)
        return random.integers(0, max(1, classes), shape).astype(leaf.dtype) if leaf.shape == () else np.zeros(shape, leaf.dtype)

    return spec.pack([values(leaf) for leaf in spec.leaves])


def _sent_once(program: Program, alone: float, workers: int) -> dict[str, Any]:
    """The method of a model with its own `train_step`: uncompressed gradients, timed as one sum."""
    arrays = [np.ones(variable.shape, np.float32) for variable in program.model.trainable_variables]
    return {"step_seconds": alone, "sums": [sum(array.nbytes for array in arrays)], "exchange_seconds": _exchange([arrays], workers)}


def _exchange(sums: Sequence[Arrays], workers: int) -> dict[str, float]:
    """Seconds of the exchange's own work for the all-reduces of a step, by number of workers."""
    counts = np.unique(np.linspace(2, workers, min(workers - 1, MOST_COUNTS), dtype=int)).tolist()
    return {str(count): exchange_seconds(sums, count, EXCHANGE_S) for count in counts}


def _candidates(asked: Reduction, shapes: list[tuple[int, ...]]) -> tuple[str, ...]:
    """Names of the reductions that the workers may agree on."""
    if asked.name != "auto":
        return (asked.name,)
    traffic = GradientTraffic(asked, shapes)
    return ("packed", "powersgd") if traffic.sent_bytes("powersgd") != traffic.sent_bytes("packed") else ("packed",)


def _method(
    local: worker_step.Local, config: Config, chosen: Reduction, workers: int, transport: str, arguments: tuple[Any, Any], seconds: float
) -> dict[str, Any]:
    sums = GradientTraffic(chosen, local.shapes).sums(chosen.name, transport)
    echo = Echo(len(sums)) if transport == DIRECT else None
    own = _seconds(_parts(local, config, chosen, echo, workers), arguments, seconds)
    exchanged = echo.step() if echo else []
    return {"step_seconds": own, "sums": list(sums), "exchange_seconds": _exchange(exchanged, workers) if exchanged else {}}


def _parts(local: worker_step.Local, config: Config, chosen: Reduction, echo: Echo | None, workers: int) -> worker_step.Parts:
    """The parts of a step of one of several workers, with sums that return at once; None if TensorFlow would send."""
    cluster = local.cluster
    setting = Setting(workers, echo is not None, cluster.threads, config.seed)
    method, rule = build_step.method_and_rule(local, config, chosen, setting)
    group: all_reduce.Group = all_reduce.OnHost(echo) if echo is not None else all_reduce.Alone()
    return worker_step.Parts(local, rule, chain.make_chain(method, group.sum, echo))


def _seconds(parts: worker_step.Steps, arguments: tuple[Any, Any], seconds: float) -> float:
    """Median seconds of a step over at least three calls after the first, which traces."""
    call: Callable[..., Any] = worker_step.make_train_call(parts)
    call(*arguments)
    durations: list[float] = []
    while len(durations) < 3 or sum(durations) < seconds:
        begun = time.monotonic()
        call(*arguments).numpy()
        durations.append(time.monotonic() - begun)
    return float(np.median(durations)) / STEPS
