"""How long a worker takes for its own part of a training step, alone: what a prediction starts from.

One step with nothing to send, and one with each reduction that may be chosen, whose sums return at once. The work of the exchange
itself is timed apart, by number of workers.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from trainer import assembly, collective, step
from trainer.cluster import Cluster
from trainer.config import Config, Reduction
from trainer.member import Member
from trainer.offline import Echo, exchange_seconds
from trainer.reduction import Setting, chain
from trainer.reduction.cost_model import DIRECT, TENSORFLOW, sent_bytes, sums_of

STEPS = 8
"""Steps between two returns to Python, the default in training."""
EXCHANGE_S = 0.3
"""Seconds over which the exchange of each number of workers is timed."""
MOST_COUNTS = 8
"""Most numbers of workers whose exchange is timed; others lie between two of them."""


def measure(config: Config, classes: int, batch: int, workers: int, threads: int, seconds: float) -> dict[str, Any]:
    """What one worker with `batch` images takes, on random images after the warm-up.

    Returns:
        `batch`, `step_seconds` (median over calls, of a worker that sends nothing), `images_per_s`, `transport`, and `methods`, empty
        for one worker. By name each has `step_seconds` with its own computing, `sums` (bytes of each all-reduce of a step) and
        `exchange_seconds` (the exchange's own work, by number of workers from 2; empty if TensorFlow sends).
    """
    cluster = Cluster(Member(0, ["alone"]), threads)
    local = assembly.build_local(cluster, config, classes)
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (STEPS, batch, *config.data.image_size), dtype=np.uint8)
    labels = random.integers(0, classes, (STEPS, batch)).astype(np.int32)
    # Rate 0: random labels must not change the weights.
    arguments = step.full((images, labels), batch * workers), np.zeros(STEPS, np.float32)
    alone = _seconds(assembly.assemble(local, config, _named(config.reduction, "packed"))[0], arguments, seconds)
    transport = DIRECT if cluster.on_host and config.reduction.transport != "tensorflow" else TENSORFLOW
    methods = {
        name: _method(local, config, _named(config.reduction, name), workers, transport, arguments, seconds)
        for name in (_candidates(config.reduction, step.shapes(local.model)) if workers > 1 else ())
    }
    return {"batch": batch, "step_seconds": alone, "images_per_s": batch / alone, "transport": transport, "methods": methods}


def _candidates(asked: Reduction, shapes: list[tuple[int, ...]]) -> tuple[str, ...]:
    """Names of the reductions that the workers may agree on."""
    if asked.name != "auto":
        return (asked.name,)
    compressible = sent_bytes(asked, "powersgd", shapes) != sent_bytes(asked, "packed", shapes)
    return ("packed", "powersgd") if compressible else ("packed",)


def _named(asked: Reduction, name: str) -> Reduction:
    return dataclasses.replace(asked, name=name)


def _method(
    local: step.Local, config: Config, chosen: Reduction, workers: int, transport: str, arguments: tuple[Any, Any], seconds: float
) -> dict[str, Any]:
    shapes = step.shapes(local.model)
    sums = sums_of(chosen, chosen.name, shapes, transport)
    echo = Echo(len(sums)) if transport == DIRECT else None
    own = _seconds(_parts(local, config, chosen, echo, workers), arguments, seconds)
    exchanged = echo.step() if echo else []
    counts = np.unique(np.linspace(2, workers, min(workers - 1, MOST_COUNTS), dtype=int)).tolist() if exchanged else []
    exchange = {str(count): exchange_seconds(exchanged, count, EXCHANGE_S) for count in counts}
    return {"step_seconds": own, "sums": list(sums), "exchange_seconds": exchange}


def _parts(local: step.Local, config: Config, chosen: Reduction, echo: Echo | None, workers: int) -> step.Parts:
    """The parts of one of several workers' step, whose sums return at once; None: TensorFlow would send."""
    cluster = local.cluster
    setting = Setting(workers, echo is not None, cluster.threads, config.seed)
    method, rule = assembly.method_and_rule(local, config, chosen, setting)
    all_reduce: collective.AllReduce = (
        collective.direct(echo) if echo is not None else lambda tensors: [tf.identity(one) for one in tensors]
    )
    return step.Parts(local, rule, chain.make(method, all_reduce, echo))


def _seconds(parts: step.Parts, arguments: tuple[Any, Any], seconds: float) -> float:
    """Median seconds of a step over at least three calls, after the first, which traces."""
    call: Callable[..., Any] = step.make_train_call(parts)
    call(*arguments)
    durations: list[float] = []
    while len(durations) < 3 or sum(durations) < seconds:
        begun = time.monotonic()
        call(*arguments).numpy()
        durations.append(time.monotonic() - begun)
    return float(np.median(durations)) / STEPS
