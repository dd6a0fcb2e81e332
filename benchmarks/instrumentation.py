"""The cost of profiling steps, in percent of the training time.

    .venv/bin/python benchmarks/instrumentation.py [--workers 2] [--every 50] [--rounds 7] [--steps 200] [--pairs 60]

The same processes train the task model (batch 64 per worker) with and without profiling in turn: first rounds of
many steps with every 50th profiled (the default of `telemetry.profile_every`) or none; then pairs of calls of 8 steps
with the last one profiled or none. The difference of a pair is the cost of one sample, far above the noise of a
round. The first sample of a process traces; it is timed separately and left out.
"""

import argparse
import datetime
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import script
from benchmarks.script import BATCH

STEPS_PER_CALL = 8


def main() -> None:
    """Start the workers and print what the chief measured."""
    measure(script.given_to_worker(script.parser(__doc__, workers=2, every=50, rounds=7, steps=200, pairs=60)))


def measure(arguments: argparse.Namespace) -> None:
    """Train with and without profiling in turn."""
    run = runner(script.joined(arguments.workers), arguments.rank)
    run(2 * STEPS_PER_CALL, 0)
    first, second = run(1, 1), run(1, 1)
    rounds = in_turn(run, arguments.rounds, arguments.steps, arguments.every)
    pairs = in_turn(run, arguments.pairs, STEPS_PER_CALL, STEPS_PER_CALL)
    if arguments.rank == 0:
        report(rounds, pairs, first - second, arguments)


def in_turn(run: Callable[[int, int], float], times: int, steps: int, every: int) -> list[tuple[float, float]]:
    """Milliseconds per step without and with profiled steps; the order alternates from pair to pair."""
    pairs = []
    for number in range(times):
        order = (0, every) if number % 2 == 0 else (every, 0)
        seconds = {variant: run(steps, variant) for variant in order}
        pairs.append((seconds[0] / steps * 1000, seconds[every] / steps * 1000))
    return pairs


def runner(cluster: Any, rank: int) -> Callable[[int, int], float]:
    """A function of `(steps, profile_every)` that trains and returns the seconds it took."""
    from trainer import step
    from trainer.data.pipeline import calls

    parts, feed, rates = script.prepared(cluster, rank, STEPS_PER_CALL)
    together, apart = step.make_train_call(parts), step.ProfiledCall(parts, step.make_forward_backward_call(parts.local))

    def run(steps: int, every: int) -> float:
        begun = time.perf_counter()
        for call in calls(0, steps, STEPS_PER_CALL, uneven=False, profile_every=every):
            some, few = feed.at(slice(call.steps)), rates[: call.steps]
            if call.taken_apart:
                apart(some, few)
            else:
                together(some, few).numpy()
        return time.perf_counter() - begun

    return run


def report(rounds: list[tuple[float, float]], pairs: list[tuple[float, float]], tracing: float, arguments: argparse.Namespace) -> None:
    """Print rounds with and without profiling, then the cost of one sample."""
    none, some = zip(*rounds, strict=True)
    cost = [(ours / without - 1) * 100 for without, ours in rounds]
    each = [(ours - without) * STEPS_PER_CALL for without, ours in pairs]
    share = statistics.median(each) / (statistics.median(none) * arguments.every) * 100
    print(machine())
    print(f"{arguments.workers} workers, task_cnn, batch {BATCH} a worker; median (quartiles)")
    print(f"  {arguments.rounds} rounds of {arguments.steps} steps each, in turn")
    print(f"    no profiled step  {spread(none)} ms per step")
    print(f"    every {arguments.every}th step      {spread(some)} ms per step, cost {spread(cost)} %")
    print(f"  {arguments.pairs} pairs of {STEPS_PER_CALL} steps, with and without a sample")
    print(f"    one sample costs {spread(each)} ms: {share:.2f} % at every {arguments.every}th step")
    print(f"  the first sample of a process costs {tracing:.2f} s more, once: it traces")


def spread(values: Any) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def machine() -> str:
    """Date, CPU and versions."""
    import tensorflow as tf

    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    today, load = datetime.datetime.now(tz=datetime.UTC).date(), os.getloadavg()[0]
    return f"{today}, {model}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}, TensorFlow {tf.__version__}"


if __name__ == "__main__":
    main()
