"""Lockstep's training step against the plain Keras-optimizer step, on local workers.

    .venv/bin/python benchmarks/local_step.py [--workers 2] [--rounds 7] [--steps 48]

Both train the task model (batch 64 per worker, SGD momentum 0.9) in the same processes and take
turns in each round, so that both see the same machine. `plain` is what TensorFlow's documentation
teaches: `strategy.run` of one step per call, with gradients applied by `optimizer.apply`, which does
its own all-reduce. Prints the median step time of each and the ratio of each round.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BATCH, SIZE, CLASSES, STEPS_PER_CALL = 64, (32, 32, 3), 10, 8
ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Start the workers and print what the chief measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is None:
        launch(arguments.workers)
    else:
        measure(arguments.rank, arguments.workers, arguments.rounds, arguments.steps)


def launch(workers: int) -> None:
    """Run this script once per worker; the chief's output is shown."""
    endpoints = [f"127.0.0.1:{port}" for port in free_ports(workers)]
    processes = []
    for rank in range(workers):
        tf_config = {"cluster": {"worker": endpoints}, "task": {"type": "worker", "index": rank}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(tf_config), "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(ROOT)}
        output = None if rank == 0 else subprocess.DEVNULL
        processes.append(subprocess.Popen([sys.executable, *sys.argv, "--rank", str(rank)], env=environment, stdout=output, stderr=output))
    sys.exit(max(process.wait() for process in processes))


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def measure(rank: int, workers: int, rounds: int, steps: int) -> None:
    """Train with both steps in turn."""
    cluster = joined(workers)
    variants = {"lockstep": lockstep(cluster, rank), "plain": plain(cluster, rank)}
    for run in variants.values():
        run(STEPS_PER_CALL)
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            begun = time.perf_counter()
            run(steps)
            times[name].append((time.perf_counter() - begun) / steps * 1000)
    if rank == 0:
        report(times, workers, rounds, steps)


def joined(workers: int) -> Any:
    """The cluster of local workers, with this worker's share of the cores."""
    from trainer.cluster import Cluster
    from trainer.member import Member

    return Cluster(Member.from_environment(), max(1, len(os.sched_getaffinity(0)) // workers))


def prepared(cluster: Any, rank: int, steps: int, model: str = "task_cnn", reduction: str = "packed") -> tuple[Any, Any, Any]:
    """The parts of the project's own step, and the arguments of a call of `steps` steps."""
    import numpy as np

    from trainer import assembly, step
    from trainer.config import Config, Reduction

    config = Config(model={"name": model}, reduction=Reduction(name=reduction))
    cluster.connect(config.reduction.transport)
    parts, _ = assembly.assemble(assembly.build_local(cluster, config, CLASSES), config, config.reduction)
    feed = step.full(*batches(rank, steps), BATCH * cluster.member.workers)
    return parts, feed, np.full(steps, 0.01, np.float32)


def batches(rank: int, steps: int) -> tuple[Any, Any]:
    """Random images and labels `[steps, batch, ...]`."""
    import numpy as np

    rng = np.random.default_rng(rank)
    images = rng.integers(0, 256, (steps, BATCH, *SIZE), dtype=np.uint8)
    return images, rng.integers(0, CLASSES, (steps, BATCH)).astype(np.int32)


def lockstep(cluster: Any, rank: int) -> Callable[[int], None]:
    """The project's own step."""
    from trainer import step

    parts, feed, rates = prepared(cluster, rank, STEPS_PER_CALL)
    call = step.make_train_call(parts)

    def run(steps: int) -> None:
        for _ in range(steps // STEPS_PER_CALL):
            call(feed, rates).numpy()

    return run


def plain(cluster: Any, rank: int) -> Callable[[int], None]:
    """The step that TensorFlow's documentation teaches, with a Keras optimizer."""
    import keras
    import tensorflow as tf

    from trainer import models

    with cluster.strategy.scope():
        model = models.build({"name": "task_cnn"}, SIZE, CLASSES)
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(model.trainable_variables)

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True))
            loss = tf.reduce_sum(losses) / (BATCH * cluster.member.workers)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, [variable.value for variable in variables]), variables)
        return loss

    @tf.function
    def call(images: Any, labels: Any) -> Any:
        return cluster.strategy.run(step, args=(images, labels))

    images, labels = batches(rank, STEPS_PER_CALL)
    feeds = [(tf.constant(images[index]), tf.constant(labels[index])) for index in range(STEPS_PER_CALL)]

    def run(steps: int) -> None:
        loss = None
        for number in range(steps):
            loss = call(*feeds[number % STEPS_PER_CALL])
        assert loss is not None
        loss.numpy()

    return run


def report(times: dict[str, list[float]], workers: int, rounds: int, steps: int) -> None:
    """Medians, images/s, and the ratio plain/lockstep of each round."""
    ratios = [plain / ours for plain, ours in zip(times["plain"], times["lockstep"], strict=True)]
    print(f"{workers} workers, task_cnn, batch {BATCH} a worker, {rounds} rounds of {steps} steps each, in turn")
    for name, values in times.items():
        median = statistics.median(values)
        speed = workers * BATCH / median * 1000
        print(f"  {name:9} median {median:6.1f} ms a step ({min(values):.1f} to {max(values):.1f}), {speed:,.0f} images/s")
    low, high = min(ratios), max(ratios)
    print(f"  lockstep is {statistics.median(ratios):.2f} times as fast as plain (median of {rounds} rounds; {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
