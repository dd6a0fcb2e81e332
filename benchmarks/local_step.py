"""Lockstep's training step against the plain Keras-optimizer step, on local workers.

    .venv/bin/python benchmarks/local_step.py [--workers 2] [--rounds 7] [--steps 48]

Both train the task model (batch 64 per worker, SGD momentum 0.9) in the same processes and take
turns in each round, so that both see the same machine. `plain` is what TensorFlow's documentation
teaches: `strategy.run` of one step per call, with gradients applied by `optimizer.apply`, which does
its own all-reduce. Prints the median step time of each and the ratio of each round.
"""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import script
from benchmarks.script import BATCH, CLASSES, SIZE

STEPS_PER_CALL = 8


def main() -> None:
    """Start the workers and print what the chief measured."""
    given = script.given_to_worker(script.parser(__doc__, workers=2, rounds=7, steps=48))
    measure(given.rank, given.workers, given.rounds, given.steps)


def measure(rank: int, workers: int, rounds: int, steps: int) -> None:
    """Train with both steps in turn."""
    cluster = script.joined(workers)
    variants = {"lockstep": lockstep(cluster, rank), "plain": plain(cluster, rank)}
    seconds = script.in_turn({name: partial(run, steps) for name, run in variants.items()}, rounds)
    times = {name: [value / steps * 1000 for value in values] for name, values in seconds.items()}
    if rank == 0:
        report(times, workers, rounds, steps)


def lockstep(cluster: Any, rank: int) -> Callable[[int], None]:
    """The project's own step."""
    from trainer import step

    parts, feed, rates = script.prepared(cluster, rank, STEPS_PER_CALL)
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

    images, labels = script.batches(rank, STEPS_PER_CALL)
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
        print(f"  {name:9} median {median:6.1f} ms per step ({min(values):.1f} to {max(values):.1f}), {speed:,.0f} images/s")
    low, high = min(ratios), max(ratios)
    print(f"  lockstep is {statistics.median(ratios):.2f} times as fast as plain (median of {rounds} rounds; {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
