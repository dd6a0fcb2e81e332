"""Tell what a run came to: write its summary, show the result, fail with the root cause."""

from pathlib import Path
from typing import Any

import yaml
from ansible.utils.display import Display

from plugins.shared import control, forecast
from trainer.analysis import hparams, outcome, text
from trainer.files import read_json, write_json
from trainer.rundir import recorded


class ActionModule(control.ControlAction):
    """Runs once, on the control node, with every host's verdict."""

    def act(self) -> dict[str, Any]:
        """Judge, write, show."""
        name, verdicts = self.arguments["run"], self.arguments["verdicts"]
        folder = Path(self.arguments["folder"])
        if all(verdict["state"] == "unreachable" for verdict in verdicts):
            message = (
                f"{name}: no host can be reached from here: {verdicts[0]['message']}. Training may well go on.\n\n{text.under_way(name)}"
            )
            return {"failed": True, "msg": message}
        summary = _summary(folder, verdicts)
        if summary["state"] == "RUNNING":
            return {"show_last": f"{name} is under way\n{text.under_way(name)}"}
        trial = str(self.arguments["place"]).startswith(f"{control.TRIALS}/")
        summary |= _end_to_end(folder, verdicts) if trial else _forecast(folder)
        write_json(folder / "summary.json", summary)
        shown = control.shown_result(folder, summary)
        if self.arguments["place"] == "doctor":
            return {} if summary["state"] == "SUCCEEDED" else {"failed": True, "msg": _trial(folder, summary, verdicts)}
        for complaint in hparams.write_all([folder])[1]:
            Display().warning(complaint)
        trouble = _trouble(name, summary, verdicts)
        if trial:
            return {"failed": True, "msg": trouble} if trouble else {}
        if trouble:
            return {"run_under_way": None, "failed": True, "msg": f"{trouble}\n\n{shown}"}
        return {"run_under_way": None, "show_last": shown, "ansible_facts": {"run_found": {"name": name, "folder": str(folder)}}}


def _trouble(name: str, summary: dict[str, Any], verdicts: list[dict[str, Any]]) -> str:
    """What kept a run from its end, root cause first; empty when nothing did."""
    cause = outcome.root_cause(verdicts)
    if cause is not None:
        return text.failure(cause, [verdict for verdict in verdicts if verdict is not cause])
    return "" if summary["state"] == "SUCCEEDED" else f"{name} was stopped before its end: {summary['state']}"


def _trial(folder: Path, summary: dict[str, Any], verdicts: list[dict[str, Any]]) -> str:
    """The doctor's two steps failed: no run of a person's, so nothing to continue."""
    trouble = _trouble("the trial", summary, verdicts)
    again = "mend that, then run it again: ansible-playbook doctor.yml"
    return f"[FAIL] training: the two steps failed\n{trouble}\n\nlogs: {control.relative(folder)}; {again}"


def _forecast(folder: Path) -> dict[str, float]:
    """What the doctor predicted for this run, where it did."""
    config = yaml.safe_load((folder / "config.yml").read_text(encoding="utf-8"))
    expected = forecast.expected(config, read_json(folder / "cluster.json"))
    return {"predicted_images_per_s": expected} if expected is not None else {}


def _end_to_end(folder: Path, verdicts: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds from the launch to the end of the last worker, both on this machine's clock."""
    return {"seconds_end_to_end": round(max(verdict["at"] for verdict in verdicts) - read_json(folder / "cluster.json")["launched_at"], 3)}


def _summary(folder: Path, verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    summary = {"workers": len(verdicts), **control.read_summary(folder)}
    summary["state"] = outcome.state(verdicts, summary["state"], cancelled=False)
    if "job" in recorded(folder).get("slurm", {}):
        summary["started_by"] = "playbooks/slurm.yml"
    if summary["state"] == "FAILED":
        cause = outcome.root_cause(verdicts)
        assert cause is not None
        summary["failure"] = {key: cause.get(key) for key in ("host", "rank", "state", "exit_code", "message")}
    else:
        summary.pop("failure", None)
    return summary
