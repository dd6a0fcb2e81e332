"""Predict images/s for every number of workers, from each host's own step, the network and the short training: the doctor's last task."""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from control.common import project, text
from control.common.plan import Plan
from control.common.task import Task
from control.remote.worker_files import read_records
from control.runs.results import expected_speed
from control.runs.results.step_model import Hosts, Prediction, Trial, curve
from control.runs.results.summary import Summary
from trainer.common.files import read_json, write_json
from trainer.config.schema import PARAMETER_SERVER
from trainer.data.spec import noun
from trainer.rundir.layout import part_of
from trainer.rundir.metrics_log import METRICS

FILE = project.PRIVATE / "doctor.json"
UNPREDICTED = "No speed is predicted for an asynchronous run: its workers do not wait for each other, and all send to the servers."


def predict(task: Task) -> dict[str, Any]:
    """Predict; one host needs no network.

    Shows the tables, and writes them for doctor.json and for the comparison after a training.
    """
    plan, timed = task.plan, task.arguments["timed"]
    folder, trained = plan.folder, bool(task.arguments["trained"])
    asynchronous = plan.config["strategy"]["name"] == PARAMETER_SERVER
    speed = UNPREDICTED if asynchronous else _predicted(task, plan, timed, folder, trained)
    training = _trained(folder, plan, asynchronous) if trained else ""
    if trained:
        shutil.rmtree(folder)
    commands = text.next_commands([("train", "ansible-playbook train.yml")])
    findings = f"all findings: {project.relative(FILE)}"
    return {"show_last": "\n\n".join(part for part in (speed, training, findings, commands) if part)}


def _predicted(task: Task, plan: Plan, timed: dict[str, Any], folder: Path, trained: bool) -> str:
    """The tables; the prediction is kept."""
    hosts = Hosts([host.name for host in plan.hosts], timed, task.arguments["diagnosis"]["network"] or {})
    trial = _trial(folder, plan) if trained else None
    predictions = curve(hosts, expected_speed.local_batch(plan.counts), trial)
    threads = {name: one["threads"] for name, one in timed.items()}
    expected_speed.save(plan, predictions, task.arguments["diagnosis"]["facts"], threads)
    write_json(FILE, {**read_json(FILE), "prediction": [asdict(one) for one in predictions], "steps": timed})
    why = Summary.read(folder).reduction["why"] if trained else ""
    return _shown(plan, why, timed, predictions)


def _trial(folder: Path, plan: Plan) -> Trial | None:
    """The short training's steps after the first call, which traces, and after the reduction's warm-up; None if there are none."""
    metrics = part_of(folder, plan.hosts[0].name) / METRICS
    calls = [record for record in read_records(metrics) if record["kind"] == "steps"][1:]
    calls = [call for call in calls if call["step"] > plan.config["reduction"]["warmup_steps"]]
    if not calls:
        return None
    seconds = sum(call["seconds"] for call in calls) / (len(calls) * plan.config["train"]["steps_per_call"])
    return Trial(Summary.read(folder).reduction["name"], float(seconds))


def _trained(folder: Path, plan: Plan, asynchronous: bool) -> str:
    summary = Summary.read(folder)
    where = f"{len(plan.hosts)} {'hosts' if asynchronous else 'workers'} in {summary.seconds_total:.0f} s"
    return f"[OK] training: {summary.steps} steps on {where}{'' if asynchronous else ', equal weights on all'}"


def _shown(plan: Plan, why: str, timed: dict[str, Any], predictions: list[Prediction]) -> str:
    methods, called = list(next(iter(timed.values()))["methods"]), noun(plan.dataset.get("spec"))
    header = ["host", "threads", "own step ms", *(f"{name} ms" for name in methods), f"{called}s/s"]
    own = [
        [
            name,
            one["threads"],
            text.Number(one["step_seconds"] * 1000, 1),
            *(text.Number(one["methods"].get(method, {}).get("step_seconds", 0.0) * 1000, 1) for method in methods),
            text.Number(one["images_per_s"], 0),
        ]
        for name, one in timed.items()
    ]
    name = f"{plan.config_name} ({plan.config['model']['name']})"
    size = expected_speed.bytes_per_step(plan.parameters["trainable"])
    sent = f", sent {why}" if why else ""
    title = f"Predicted for {name}: {size / 1e6:,.1f} MB of gradients per step{sent}"
    return f"{title}\n{text.table(header, own)}\n\n{expected_speed.table(predictions, called)}"
