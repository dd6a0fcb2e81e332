"""The doctor's prediction on disk: written by `doctor.yml`, compared with what a training measured."""

import datetime
import hashlib
import json
from pathlib import Path
from typing import Any

from plugins.shared import control
from trainer.analysis import prediction
from trainer.files import read_json, write_json

FOLDER = control.PRIVATE / "predictions"


def path(config: dict[str, Any], batch: int) -> Path:
    """The file for a model, its input, its reduction and the images that a worker takes a step."""
    said = {"model": config["model"], "size": config["data"]["image_size"], "reduction": config["reduction"], "batch": batch}
    return FOLDER / f"{hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]}.json"


def local_batch(counts: dict[str, Any]) -> int:
    """Images that one worker takes a step, rounded down."""
    return max(1, int(counts["global_batch"]) // int(counts["workers"]))


def save(plan: dict[str, Any], found: list[prediction.Prediction]) -> None:
    """Write a prediction for the plan's hosts, 1 to all."""
    value = {
        "made_at": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        "hosts": [control.place(host) for host in plan["hosts"]],
        "predictions": prediction.as_dicts(found),
    }
    write_json(path(plan["config"], local_batch(plan["counts"])), value)


def expected(config: dict[str, Any], record: dict[str, Any]) -> float | None:
    """Images/s that the doctor predicted for a run (its config.yml and cluster.json), or None when it said nothing of those hosts."""
    file = path(config, local_batch(record["counts"]))
    if not file.is_file():
        return None
    made, names = read_json(file), [control.place(host) for host in record["hosts"]]
    if made["hosts"][: len(names)] != names:
        return None
    return float(made["predictions"][len(names) - 1]["images_per_s"])
