"""A cell of `benchmarks/peers.yml` that is `train.yml` itself: the variables it is given, and the row that its run's files make."""

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.analysis.peers import CHUNK, SYSTEMS, Cell, Settings
from benchmarks.analysis.peers_results import MEASURED, Row, failed
from control import project
from trainer.files import read_json
from trainer.records import read_history

RUN = "peers-train"
IMAGES = project.ROOT / "benchmarks" / "peers" / "random_images.py"
TRAIN_IMAGES, HELD_OUT = 16_384, 256
"""Random images for training, and those of them held out for validation."""
EPOCH_STEPS = 128
"""Fewest steps of an epoch: what an epoch's end costs weighs as in a real one (CIFAR-10 on five workers: 125 steps)."""


def variables(cell: Cell, settings: Settings) -> dict[str, Any]:
    """What `train.yml` is given with `-e`: a warm-up epoch, then one of at least `settings.steps` steps."""
    sizes = {
        "batch_size": settings.batch,
        "steps_per_call": CHUNK,
        "steps_per_epoch": max(settings.steps, EPOCH_STEPS),
        "epochs": 2,
    }
    values = {f"train.{name}": value for name, value in sizes.items()} | {"data.validation_split": HELD_OUT / TRAIN_IMAGES}
    more = SYSTEMS[cell.system].variant
    return {
        "run": RUN,
        "config": "task_cnn",
        "dataset": f"{IMAGES}:images",
        "workers": cell.workers,
        "set": ",".join([*(f"{key}={value}" for key, value in values.items()), *([more] if more else [])]),
    }


def row(cell: Cell, folder: Path) -> Row:
    """The row of a run that ended well: all its epochs but the first, each of which has as many images."""
    summary, timed = read_json(folder / "summary.json"), read_history(folder / "history.csv")[1:]
    if not timed:
        return failed(cell, f"{folder.name}: history.csv has no epoch after the first")
    rate = statistics.harmonic_mean(epoch["images_per_s"] for epoch in timed)
    seconds, steps = sum(epoch["seconds"] for epoch in timed), summary["steps"] * len(timed) // summary["epochs"]
    return Row(
        **asdict(cell),
        state=MEASURED,
        seconds_step=seconds / steps,
        images_per_s=rate,
        slowest_seconds_step=seconds / steps,
        steps=steps,
        loss=timed[-1]["loss"],
        weights_equal=len(set(summary["weights_sha256_by_rank"])) == 1,
        started_at=read_json(folder / "cluster.json")["launched_at"],
        chosen=summary["reduction"]["name"] if cell.workers > 1 else "",
    )
