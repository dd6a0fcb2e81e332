"""Predictions of a cluster's speed: shown, kept, and compared with a training's measured speed."""

import datetime
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from control.common import project, text
from control.common.plan import Plan
from control.runs.results.step_model import Prediction
from trainer.common.files import read_json, write_json
from trainer.rundir.launch_record import LaunchRecord

FOLDER = project.PRIVATE / "predictions"


def bytes_per_step(parameters: int) -> int:
    """Bytes of gradients that each host contributes per step, uncompressed."""
    return parameters * 4


def table(predictions: list[Prediction], called: str = "image") -> str:
    """Table with one row per number of workers; times in milliseconds. `called`: noun for an example."""
    times = [f"{part} ms" for part in ("compute", "exchange", "wire", "delay", "waiting", "step")]
    header = ["workers", "sent", *times, f"{called}s/s", "of ideal"]
    rows = [
        [
            one.workers,
            one.method or "-",
            *(text.Number(seconds * 1000, 1) for seconds in (one.compute_s, one.exchange_s, one.wire_s, one.latency_s)),
            *(text.Number(seconds * 1000, 1) for seconds in (one.waiting_s, one.step_s)),
            text.Number(one.images_per_s, 0),
            Percent(one.efficiency),
        ]
        for one in predictions
    ]
    return text.table(header, rows)


class Percent(float):
    """A share as a percentage in a table."""

    def __str__(self) -> str:
        """The percentage without decimals."""
        return f"{float(self):.0%}"


def _path(config: dict[str, Any], batch: int) -> Path:
    """The file for a model, its input, its reduction and the images per worker and step."""
    key = {"model": config["model"], "size": config["data"]["image_size"], "reduction": config["reduction"], "batch": batch}
    return FOLDER / f"{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]}.json"


def local_batch(counts: dict[str, Any]) -> int:
    """Images per worker and step, rounded down."""
    return max(1, int(counts["global_batch"]) // int(counts["workers"]))


def save(plan: Plan, predictions: list[Prediction], facts: dict[str, Any], threads: dict[str, int]) -> None:
    """Write a prediction for the plan's hosts, from one to all of them, with the facts that it is based on.

    Args:
        plan: the doctor's.
        predictions: results of `curve`.
        facts: of `host_probe`, by host.
        threads: number of threads with which each host's own step was timed, by host.
    """
    names, batch = [host.name for host in plan.hosts], local_batch(plan.counts)
    value = {
        "made_at": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        "hosts": [host.label for host in plan.hosts],
        "made_with": [[threads.get(name), facts.get(name, {}).get("cpus"), batch] for name in names],
        "predictions": [asdict(one) for one in predictions],
    }
    write_json(_path(plan.config, batch), value)


def expected(config: dict[str, Any], record: LaunchRecord, shares: list[int] | None = None) -> float | None:
    """The doctor's prediction for a run, in images/s; None without a prediction for these hosts as they were in that run.

    The prediction does not apply to a host with another number of threads, share of its processor, or share of a step's images.

    Args:
        config: the run's config.yml.
        record: its cluster.json.
        shares: each worker's share of a step (`shares` of its summary.json); None: equal shares.
    """
    file = _path(config, local_batch(record.counts))
    if not file.is_file():
        return None
    forecast, names = read_json(file), [host.label for host in record.hosts]
    batch = local_batch(record.counts)
    # A node wrote the shares, so they are not trusted: their number may be wrong, or all may be 0.
    sizes = [round(record.counts["global_batch"] * share / max(1, sum(shares))) for share in shares] if shares else [batch] * len(names)
    if len(sizes) != len(names):
        return None
    now = [[host.threads, host.cpus, size] for host, size in zip(record.hosts, sizes, strict=True)]
    if forecast["hosts"][: len(names)] != names or forecast.get("made_with", [])[: len(names)] != now:
        return None
    return float(forecast["predictions"][len(names) - 1]["images_per_s"])


def sentence(predicted: float, measured: float, called: str = "image") -> str:
    """Sentence shown after training; both speeds are in examples per second, from 0, and `called` is the noun for an example."""
    if measured <= 0:
        return f"{predicted:,.0f} {called}s/s by the doctor, measured 0"
    percent = (predicted / measured - 1) * 100
    error = f"{abs(percent):.0f}% too {'high' if percent > 0 else 'low'}" if abs(percent) >= 1 else "correct within 1%"
    return f"{predicted:,.0f} {called}s/s by the doctor, measured {measured:,.0f}: {error}"
