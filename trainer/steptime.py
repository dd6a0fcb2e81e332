"""How long a single worker takes for a training step: the compute part of a prediction, without a network."""

import time
from typing import Any

import numpy as np

from trainer import assembly, step
from trainer.cluster import Cluster
from trainer.config import Config
from trainer.member import Member

STEPS = 8
"""Steps between two returns to Python, the default in training."""


def measure(config: Config, classes: int, batch: int, threads: int, seconds: float) -> dict[str, Any]:
    """`step_seconds` (median over at least three calls), `images_per_s`, `batch`, `steps` timed, on random images after the warm-up."""
    cluster = Cluster(Member(0, ["alone"]), threads)
    local = assembly.build_local(cluster, config, classes)
    call = step.make_train_call(assembly.assemble(local, config, config.reduction)[0])
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (STEPS, batch, *config.data.image_size), dtype=np.uint8)
    labels = random.integers(0, classes, (STEPS, batch)).astype(np.int32)
    # Rate 0: random labels must not change the weights.
    arguments = step.full(images, labels), np.zeros(STEPS, np.float32)
    call(*arguments)
    durations: list[float] = []
    while len(durations) < 3 or sum(durations) < seconds:
        begun = time.monotonic()
        call(*arguments).numpy()
        durations.append(time.monotonic() - begun)
    median = float(np.median(durations)) / STEPS
    return {"step_seconds": median, "images_per_s": batch / median, "batch": batch, "steps": len(durations) * STEPS}
