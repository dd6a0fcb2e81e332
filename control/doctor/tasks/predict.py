"""The doctor's end: predict images/s for every number of workers, from each host's own step, the network and the two-step training."""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from control import project, text
from control.doctor import prediction
from control.runs import run_results
from control.task import Task
from trainer.files import read_json, write_json
from trainer.telemetry import read_records


class Predict(Task):
    """Shows the tables, and writes them for doctor.json and for the comparison after a training."""

    def act(self) -> dict[str, Any]:
        """Predict; one host needs no network."""
        plan, timed = self.arguments["plan"], self.arguments["timed"]
        folder, trained = Path(plan["folder"]), bool(self.arguments["trained"])
        chosen = run_results.read_summary(folder)["reduction"] if trained else {}
        size = chosen.get("sent_bytes") or prediction.bytes_per_step(plan["parameters"]["trainable"])
        predictions = self._curve(plan, size, _second_step(folder, plan) if trained else None)
        threads = {name: one["threads"] for name, one in timed.items()}
        prediction.save(plan, predictions, self.arguments["diagnosis"]["facts"], threads)
        file = project.PRIVATE / "doctor.json"
        write_json(file, {**read_json(file), "prediction": [asdict(one) for one in predictions], "steps": timed})
        training = _trained(folder, plan) if trained else ""
        if trained:
            shutil.rmtree(folder)
        commands = text.next_commands([("train", "ansible-playbook train.yml")])
        findings = f"all findings: {project.relative(file)}"
        return {"show_last": "\n\n".join(part for part in (_shown(plan, chosen, timed, predictions), training, findings, commands) if part)}

    def _curve(self, plan: dict[str, Any], size: int, measured: float | None) -> list[prediction.Prediction]:
        hosts, batch = [host["name"] for host in plan["hosts"]], prediction.local_batch(plan["counts"])
        compute = {name: one["step_seconds"] for name, one in self.arguments["timed"].items()}
        network = self.arguments["diagnosis"]["network"] or {}
        bare = prediction.curve(hosts, compute, batch, size, network)
        handling = prediction.handling(measured, bare[-1], size) if measured is not None else 0.0
        return prediction.curve(hosts, compute, batch, size, network, handling)


def _second_step(folder: Path, plan: dict[str, Any]) -> float | None:
    """Seconds of the trial's last step, which no tracing delays; None if its record is missing."""
    metrics = folder / "workers" / plan["hosts"][0]["name"] / "metrics.jsonl"
    steps = [record for record in read_records(metrics) if record["kind"] == "steps"]
    return float(steps[-1]["seconds"]) if len(steps) > 1 else None


def _trained(folder: Path, plan: dict[str, Any]) -> str:
    summary = run_results.read_summary(folder)
    where = f"{len(plan['hosts'])} workers in {summary['seconds_total']:.0f} s"
    return f"[OK] training: {summary['steps']} steps on {where}, equal weights on all"


def _shown(plan: dict[str, Any], chosen: dict[str, Any], timed: dict[str, Any], predictions: list[prediction.Prediction]) -> str:
    own = [
        [name, text.Number(one["step_seconds"] * 1000, 1), text.Number(one["images_per_s"], 0), one["threads"]]
        for name, one in timed.items()
    ]
    name = f"{plan['config_name']} ({plan['config']['model']['name']})"
    alone = text.table(["host", "own step ms", "images/s", "threads"], own)
    size = prediction.bytes_per_step(plan["parameters"]["trainable"])
    sent = f", sent {chosen['why']}" if chosen else ", as if sent whole"
    return f"Predicted for {name}: {size / 1e6:,.1f} MB of gradients per step{sent}\n{alone}\n\n{prediction.table(predictions)}"
