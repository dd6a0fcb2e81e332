"""This project's own step; with the variant `ideal`, all workers train at the same time but separately.

With `in-step`, each worker also keeps its gradients, but all wait for each other twice per step, as with PowerSGD: this is
the cost of synchrony before any gradient is sent. `parts` is the default with its parts timed. `profiled` takes the last of
CHUNK steps apart, as `telemetry.profile_every` does. Any other variant is sections of the configuration as JSON, such as
{"reduction": {"name": "powersgd", "rank": 2}}; {} is the default.
"""

import json
import os
import time
from collections.abc import Callable
from typing import Any

import common
import tensorflow_model

IDEAL, IN_STEP, PARTS, PROFILED = "ideal", "in-step", "parts", "profiled"
PACKED: dict[str, Any] = {"reduction": {"name": "packed"}}
SECTIONS = {IDEAL: PACKED, IN_STEP: PACKED, PARTS: {}, PROFILED: PACKED}
"""Configuration sections for variants that are not sections themselves."""


def main() -> None:
    """Train and time."""
    given = common.Task.parse()
    meeting = common.Meeting(given)
    variant, alone = given.variant, given.variant == IDEAL
    os.environ["TF_CONFIG"] = tensorflow_model.tf_config(given, alone)
    sections = SECTIONS[variant] if variant in SECTIONS else json.loads(variant or "{}")
    watched = watch() if variant == PARTS else None
    common.measure(given, meeting, lockstep(given, sections, watched), alone)


class Account:
    """Adds up what watched functions take between two calls of `take`, by part of a step."""

    def __init__(self) -> None:
        self._taken: dict[str, list[float]] = {}

    def watch(self, part: str, owner: Any, name: str) -> None:
        """Count the time of a module's or class's function towards a part; watched functions must not call each other."""
        setattr(owner, name, self._watched(part, getattr(owner, name)))

    def _watched(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        sums = self._taken.setdefault(part, [0.0, 0.0])

        def call(*arguments: Any, **named: Any) -> Any:
            processor, begun = time.thread_time(), time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                sums[0] += time.thread_time() - processor
                sums[1] += time.perf_counter() - begun

        return call

    def take(self) -> dict[str, list[float]]:
        """CPU seconds and seconds by part since the last call; resets the counters."""
        taken = {part: list(sums) for part, sums in self._taken.items()}
        for sums in self._taken.values():
            sums[:] = 0.0, 0.0
        return taken


def watch() -> Account:
    """Time each part of a step from now on; the rest is TensorFlow's own work."""
    from trainer.network.sockets_all_reduce import Direct
    from trainer.reduction import kernels, powersgd_host

    account = Account()
    account.watch("gradient of the large layer", powersgd_host, "product")
    account.watch("add to the error, P", kernels, "project")
    account.watch("Q", kernels, "reproject")
    for name in ("orthonormalise", "principal", "turn"):
        account.watch("factors made orthonormal, turned", kernels, name)
    account.watch("momentum and weights of the large layer", kernels, "momentum_low_rank")
    account.watch("both sums: sending and waiting", Direct, "all_reduce")
    return account


def lockstep(given: common.Task, sections: dict[str, Any], watched: Account | None = None) -> common.Trained:
    """The step of `trainer.worker.loop.Trainer`, with the same parts built in the same order; images come from memory.

    Args:
        given: this worker's task.
        sections: of the configuration, such as `reduction`.
        watched: times the parts of a step.
    """
    import dataclasses
    import functools

    import numpy as np

    from trainer.config import loading
    from trainer.engine import auto_reduction, batch_shares
    from trainer.keras_step import keras_metrics
    from trainer.network.cluster import Cluster
    from trainer.network.member import Member
    from trainer.reduction import chain
    from trainer.reduction.method import Method
    from trainer.step import batch_arrays, build_step, worker_step
    from trainer.step.step_sums import StepSums

    update = {"learning_rate": common.LEARNING_RATE, "momentum": common.MOMENTUM}
    config = loading.build({"model": {"name": "task_cnn"}, "optimizer": update, **sections})
    cluster = Cluster(Member.from_environment(), given.threads)
    cluster.connect(config.reduction.transport)
    local = build_step.build_local(cluster, config, common.CLASSES)

    def seconds(batch: int) -> float:
        return auto_reduction.own_seconds(cluster, local.forward_backward_call, batch_arrays.blank(local.spec, batch))

    total = given.batch * cluster.member.workers
    chosen, choice = auto_reduction.resolve(config.reduction, cluster, local.shapes, None, functools.partial(seconds, given.batch))
    parts = build_step.assemble(local, config, chosen)
    if given.variant == IN_STEP:
        parts = dataclasses.replace(parts, reduction=chain.make_chain(Method(waits_twice()), cluster.group.sum, None))
    profiled = worker_step.ProfiledCall(parts)
    overhead = functools.partial(auto_reduction.overhead_seconds, profiled, local.spec)
    shares, _ = batch_shares.shares(config.train, cluster, total, [], seconds, overhead)
    batch = total * shares[cluster.member.rank] // sum(shares)
    call = worker_step.make_train_call(parts)

    images, labels = common.images(given.rank, batch)
    feed, rates = batch_arrays.full((images, labels), total), np.full(common.CHUNK, common.LEARNING_RATE, np.float32)
    parts_of_calls: list[dict[str, list[float]]] = []
    results = keras_metrics.Results(local.model)

    def run(steps: int) -> float:
        together = steps - 1 if given.variant == PROFILED else steps
        sums = StepSums(call(feed.at(slice(together)), rates[:together]).numpy())
        if given.variant == PROFILED:
            profiled(feed.at(slice(together, steps)), rates[:1])
        if watched:
            parts_of_calls.append(watched.take())
        return results(sums.metrics[-1])["loss"]

    versions = common.versions(*tensorflow_model.VERSIONS, "numba")
    settings = {"reduction": vars(chosen), "why": choice.why, "steps_per_call": common.CHUNK}
    return common.Trained(run, lambda: tensorflow_model.weights(local.model), versions, settings, batch, parts_of_calls)


def waits_twice() -> list[Any]:
    """The computations of a method that sums only the losses, twice."""
    return [
        lambda values: (values[1:], values[:1]),
        lambda values: (values[:-1], values[-1:]),
        lambda values: ([values[-1], *values[:-1]], []),
    ]


if __name__ == "__main__":
    main()
