"""Make and show the plan of `train.yml`; nothing on any host is touched."""

import secrets
from pathlib import Path
from typing import Any

from plugins.shared import control, launches, planning
from trainer.analysis import text
from trainer.files import read_json
from trainer.plan import truth
from trainer.rundir import recorded


class ActionModule(control.ControlAction):
    """Returns the facts `plan` and `cluster`."""

    def act(self) -> dict[str, Any]:
        """Validate what was typed, resolve it, show it."""
        command = self.arguments.get("command", "train")
        options = control.operator_options(command, self.task_vars)
        truth("preflight", options.get("preflight", True))
        plan = planning.make(
            _selftest(options) if command == "doctor" else options,
            planning.hosts(self.task_vars),
            self.arguments.get("place", "runs"),
            int(self._templar.template(self.arguments["default_workers"])),
            self.arguments["packs"],
            not self._task.check_mode,
        )
        if truth("show_config", options.get("show_config", False)):
            # Complete as far as the stages after this one are concerned: there is nothing for them to do.
            return {
                "show_last": plan["config_yaml"].rstrip(),
                "ansible_facts": {"plan": {**plan, "complete": True}, "cluster": plan["hosts"], "run_options": options},
            }
        if command == "train" and not plan["complete"]:
            launches.check_job(plan["run"], recorded(Path(plan["folder"])))
        already = {"show_last": _already(plan)} if plan["complete"] else {}
        facts = {"run_found": _found(plan)} if plan["complete"] else {}
        return {
            **already,
            "show": text.plan(plan, control.relative(Path(plan["folder"]).parent), planning.warnings(plan["hosts"])),
            "ansible_facts": {"plan": plan, "cluster": plan["hosts"], "run_options": options, **facts},
        }


def _found(plan: dict[str, Any]) -> dict[str, Any]:
    """A run that is complete, for what comes after training."""
    cluster = read_json(Path(plan["folder"]) / "cluster.json")
    return {"name": plan["run"], "folder": plan["folder"], "dataset": cluster["dataset"], "code": cluster["code"]}


def _selftest(options: dict[str, Any]) -> dict[str, Any]:
    """The doctor's own run: two steps of what was asked for, under a name that no other run has."""
    truth("selftest", options.get("selftest", True))
    return {**options, "selftest": True, "run": f"selftest-{secrets.token_hex(4)}"}


def _already(plan: dict[str, Any]) -> str:
    """The result of a run that is complete already."""
    folder = Path(plan["folder"])
    shown = control.shown_result(folder, control.read_summary(folder))
    return f"Nothing to do: {plan['counts']['epochs']} epochs are done already.\n\n{shown}"
