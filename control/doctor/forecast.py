"""The doctor's prediction on disk: written by `doctor.yml`, compared with what a training measures."""

import datetime
import hashlib
import json
from pathlib import Path
from typing import Any

from control import project
from control.doctor import prediction
from control.runs import cluster
from trainer.files import read_json, write_json

FOLDER = project.PRIVATE / "predictions"


def path(config: dict[str, Any], batch: int) -> Path:
    """The file for a model, its input, its reduction and the images per worker and step."""
    key = {"model": config["model"], "size": config["data"]["image_size"], "reduction": config["reduction"], "batch": batch}
    return FOLDER / f"{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]}.json"


def local_batch(counts: dict[str, Any]) -> int:
    """Images per worker and step, rounded down."""
    return max(1, int(counts["global_batch"]) // int(counts["workers"]))


def save(plan: dict[str, Any], predictions: list[prediction.Prediction]) -> None:
    """Write a prediction for the plan's hosts, 1 to all."""
    value = {
        "made_at": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        "hosts": [cluster.label(host) for host in plan["hosts"]],
        "predictions": prediction.as_dicts(predictions),
    }
    write_json(path(plan["config"], local_batch(plan["counts"])), value)


def expected(config: dict[str, Any], record: dict[str, Any]) -> float | None:
    """Images/s that the doctor predicted for a run (its config.yml and cluster.json), or None without a prediction for those hosts."""
    file = path(config, local_batch(record["counts"]))
    if not file.is_file():
        return None
    forecast, names = read_json(file), [cluster.label(host) for host in record["hosts"]]
    if forecast["hosts"][: len(names)] != names:
        return None
    return float(forecast["predictions"][len(names) - 1]["images_per_s"])
