"""Resolution of `reduction.name: auto` on a cluster: measured once before training, and kept."""

import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainer.config.schema import Reduction
from trainer.data.batch import Batch
from trainer.data.spec import Spec
from trainer.engine.measured_choices import SENT, EarlierChoice, unmeasured
from trainer.network.cluster import Cluster
from trainer.reduction.cost_model import DIRECT, TENSORFLOW, Choice, GradientTraffic
from trainer.step import batch_arrays

Shapes = Sequence[tuple[int, ...]]
SMALL, LARGE = 2**14, 2**19
"""Floats in the two timed sums; their difference gives the cost per float."""
ROUNDS = 3
STEPS = 8
"""Steps over which a step's overhead is averaged."""


def resolve(
    asked: Reduction,
    cluster: Cluster,
    shapes: Shapes,
    before: str | None,
    own_seconds: Callable[[], float],
    kept: EarlierChoice | None = None,
    scaled: bool = False,
) -> tuple[Reduction, Choice]:
    """The reduction of a run, with a name other than `auto`, and the reason; equal on all workers.

    `before` is the method with which a resumed run began; `own_seconds` measures a forward and backward pass on this worker; `kept` are
    earlier measurements for this model on these hosts, equal on all workers; for `scaled` see `unmeasured`. The cluster is connected.
    """
    traffic, settled = GradientTraffic(asked, shapes), unmeasured(asked, cluster.member.hosts, before, kept, scaled)
    if cluster.member.workers == 1:
        choice = Choice("packed", "to nobody: one worker trains", 0)
    elif settled:
        name, reason = settled
        choice = Choice(name, f"{SENT[name]}: {reason}", traffic.sent_bytes(name))
    else:
        choice = traffic.choose(_slowest(cluster, own_seconds()), _slowest(cluster, _sending_seconds(cluster, shapes)))
    if cluster.member.workers > 1:
        transport = TENSORFLOW if cluster.direct is None else DIRECT
        choice = dataclasses.replace(choice, transport=transport, sums=traffic.sums(choice.name, transport))
    return dataclasses.replace(asked, name=choice.name), choice


def _slowest(cluster: Cluster, seconds: float) -> float:
    return float(cluster.gather([max(1, round(seconds * 1e6))]).max()) / 1e6


def own_seconds(cluster: Cluster, forward_backward_call: Callable[..., object], batch: Batch) -> float:
    """Seconds of one forward and backward pass on this worker: the shortest of a few rounds, without the first, which traces."""
    blank = batch.at(0)

    def work() -> None:
        forward_backward_call(blank)
        cluster.settle()

    return _shortest(work)


def overhead_seconds(profiled_call: Callable[..., Any], spec: Spec) -> float:
    """Seconds of a step's compression and update on this worker. All workers call this at once, and restore the weights afterwards."""
    batch = batch_arrays.blank(spec)
    profiles = [profiled_call(batch, np.zeros(1, np.float32))[1] for _ in range(1 + STEPS)]
    # The mean, not the shortest time: a host with a fraction of a CPU computes in bursts.
    return statistics.fmean(parts["compression"] + parts["apply"] for parts in profiles if parts is not None)


def _sending_seconds(cluster: Cluster, shapes: Shapes) -> float:
    """Seconds of an all-reduce of all gradients in float32, extrapolated from two smaller ones."""
    times = [_shortest(functools.partial(_send, cluster, size)) for size in (SMALL, LARGE)]
    floats = sum(math.prod(shape) for shape in shapes)
    a_float = max(0.0, times[1] - times[0]) / (LARGE - SMALL)
    return times[0] + a_float * max(0, floats - SMALL)


def _send(cluster: Cluster, size: int) -> None:
    values = np.zeros(size, np.float32)
    if cluster.direct is not None:
        cluster.direct.all_reduce([values])
    else:
        cluster.sum(values)


def _shortest(work: Callable[[], object]) -> float:
    """Seconds of the fastest round after the first, which traces or opens the connection."""
    seconds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return min(seconds[1:])
