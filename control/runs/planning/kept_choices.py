"""Choices measured in a host set's first training and kept for later ones: the reduction, and the division of a step's images.

The control node keeps one file per model and set of hosts. `trainer.engine.measured_choices` has the
reasons, and reads a run's choices.
"""

import datetime
import hashlib
import json
from pathlib import Path
from typing import Any

from control.common import project, text
from control.common.plan import Plan
from control.remote.worker_files import read_records
from control.runs.results.summary import Summary
from trainer.common.errors import ConfigError
from trainer.common.files import read_json, write_json
from trainer.config.schema import Reduction
from trainer.engine import measured_choices
from trainer.host import sealed_files
from trainer.rundir.launch_record import LaunchRecord

FOLDER = project.PRIVATE / "choices"
MODEL = 1
"""Version of the trainer's measurements and choices; a new number forces a new measurement."""
AUTO = "auto"


def of(plan: Plan, remeasure: bool) -> dict[str, Any]:
    """Choices passed to the plan's run: `method` and `shares` if kept, `told` (when and by which run), `key`, `remeasure`.

    Raises:
        ConfigError: `remeasure` is set for a run that has begun and keeps its choices.
    """
    if remeasure and _has_begun(plan):
        raise ConfigError(
            f"remeasure=true: run={plan.run} continues as it began. Fix: leave it out, or give a new run name, which measures again"
        )
    key = _key(plan)
    path = FOLDER / f"{key}.json"
    stored = read_json(path) if path.is_file() and not remeasure else {}
    wanted = {"method": plan.config["reduction"]["name"], "shares": plan.config["train"]["batch_sizes"]}
    given = {name: stored[name] for name, asked in wanted.items() if asked == AUTO and name in stored}
    origin = {"told": _origin(stored)} if given else {}
    return {"key": key, "remeasure": remeasure, **given, **origin}


def _has_begun(plan: Plan) -> bool:
    """Return whether the plan's run has a training state to resume from."""
    return bool(sealed_files.names(plan.folder / "state"))


def _keep(run: Path, measured: dict[str, Any]) -> None:
    """Keep a run's measurements, unless an earlier run's exist; a requested new measurement replaces them.

    Args:
        run: the run's directory on the control node.
        measured: `method`, `shares`, or both.
    """
    record = LaunchRecord.read(run)
    given = record.kept or {}
    # A node's values are not trusted: shares with another sum would not divide this batch.
    shares = measured.get("shares")
    divides = shares is None or (len(shares) == len(record.hosts) and sum(shares) == record.counts["global_batch"])
    if not measured or "key" not in given or not divides:
        return
    path, at = FOLDER / f"{given['key']}.json", record.launched_at
    stored = read_json(path) if path.is_file() else {}
    renews = given["remeasure"] and at > stored.get("at", 0)
    if renews or set(measured) - stored.keys():
        origin = {"run": run.name, "at": at, "hosts": [host.label for host in record.hosts]}
        write_json(path, {**measured, **({} if renews else stored)} | (origin if renews or not stored else {}))


def keep_of(run: Path, record: dict[str, Any]) -> None:
    """Keep the measurements in a record of metrics.jsonl, if it is valid."""
    if record["kind"] in ("reduction", "shares") and record.get("measured"):
        measured = measured_choices.EarlierChoice.parse({"method": record.get("name"), "shares": record.get("parts")})
        _keep(run, {name: value for name, value in (("method", measured.method), ("shares", measured.shares)) if value is not None})


def keep_all(run: Path) -> None:
    """Keep the measurements in all collected records of a run."""
    for path in sorted((run / "workers").glob("*/metrics.jsonl")):
        for record in read_records(path):
            keep_of(run, record)


def sending_text(plan: Plan) -> str:
    """Text on the reduction of the plan's gradients; empty with one worker."""
    given, reduction = measured_choices.EarlierChoice.parse(plan.kept), Reduction(**plan.config["reduction"])
    before = Summary.read(plan.folder).reduction.get("name") if _has_begun(plan) else None
    if len(plan.hosts) == 1:
        return ""
    scaled = bool((plan.compiled or {}).get("scales_loss"))
    predicted = measured_choices.unmeasured(reduction, [str(host.address) for host in plan.hosts], before, given, scaled)
    if predicted is None:
        return "auto: measured at the start of this training, and kept for later ones on these hosts"
    name, reason = predicted
    again = "; measure again: -e remeasure=true" if given.method and reason == given.origin else ""
    return f"{name}{f' rank {reduction.rank}' if name == 'powersgd' else ''} ({reason}{again})"


def divided(plan: Plan) -> str:
    """Text on the division of a step's images, if measured before."""
    given, counts = measured_choices.EarlierChoice.parse(plan.kept), plan.counts
    if given.shares is None or len(given.shares) != len(plan.hosts):
        return ""
    return f", divided {text.listed(given.shares)} ({given.origin}; measure again: -e remeasure=true)" if counts["workers"] > 1 else ""


def _key(plan: Plan) -> str:
    config = plan.config
    inputs = {
        "measures": MODEL,
        "model": config["model"],
        "size": config["data"]["image_size"],
        "parameters": plan.parameters,
        "precision": config["train"]["precision"],
        "environment": [config["train"].get("environment"), [host.environment or None for host in plan.hosts]],
        "optimizer": config["optimizer"]["name"],
        "reduction": config["reduction"],
        "batch": [plan.counts["global_batch"], config["train"]["batch_sizes"]],
        "hosts": [[host.name, str(host.address), host.gpus] for host in plan.hosts],
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]


def _origin(stored: dict[str, Any]) -> str:
    return f"measured {datetime.datetime.fromtimestamp(stored['at']):%Y-%m-%d} by run {stored['run']}"
