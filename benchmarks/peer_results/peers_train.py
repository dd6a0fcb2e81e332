"""A cell of `benchmarks/peers.yml` that is `train.yml` itself: the variables it is given, and the row that its run's files make."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peer_results.peer_trials import CHUNK, SYSTEMS, Cell, Settings
from benchmarks.peer_results.peers_results import MEASURED, Row
from benchmarks.shared import epochs, random_images
from trainer.common.files import read_json

DATASET = f"{Path(random_images.__file__).resolve()}:images"
HELD_OUT = 256
"""Random images held out for validation."""
LONGEST_NAME = 58
EPOCH_STEPS = 128
"""Fewest steps of an epoch: what an epoch's end costs weighs as in a real one (CIFAR-10 on five workers: 125 steps)."""


def run_name(peers: str) -> str:
    """Name of the runs of a benchmark, one after another: unlike any of the user's own, since they are deleted."""
    return f"{peers[:LONGEST_NAME]}.train"


def variables(cell: Cell, settings: Settings) -> dict[str, Any]:
    """Variables of `train.yml` for `-e`: a warm-up epoch, then one of at least `settings.steps` steps."""
    values = {
        "train.batch_size": settings.batch,
        "train.steps_per_call": CHUNK,
        "train.steps_per_epoch": max(settings.steps, EPOCH_STEPS),
        "train.epochs": 2,
        "data.validation_split": HELD_OUT / random_images.COUNTS["train"],
    }
    pairs = [f"{key}={value}" for key, value in values.items()]
    return {
        "config": "task_cnn",
        "dataset": DATASET,
        "workers": cell.workers,
        "set": ",".join(filter(None, [*pairs, SYSTEMS[cell.system].variant])),
    }


def row(cell: Cell, folder: Path) -> Row:
    """The row of a run that ended well: all its epochs but the first, each of which has as many images."""
    summary, timed = read_json(folder / "summary.json"), epochs.timed(folder)
    if not timed:
        return Row.failed(cell, f"{folder.name}: history.csv has no epoch after the first")
    steps = summary["steps"] * len(timed) // summary["epochs"]
    seconds_step = sum(epoch["seconds"] for epoch in timed) / steps
    return Row(
        **asdict(cell),
        state=MEASURED,
        seconds_step=seconds_step,
        images_per_s=epochs.images_per_s(timed),
        slowest_seconds_step=seconds_step,
        steps=steps,
        loss=timed[-1]["loss"],
        weights_equal=len(set(summary["weights_sha256_by_rank"])) == 1,
        started_at=read_json(folder / "cluster.json")["launched_at"],
        chosen=summary["reduction"]["name"] if cell.workers > 1 else "",
    )
