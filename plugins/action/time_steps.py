"""The time that this host alone takes for a step of the plan's model."""

import shlex
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from control.remote import checked_code
from control.runs.cluster import gpu_share, thread_share
from plugins.shared import action
from trainer import records
from trainer.environment import assignments


class ActionModule(ActionBase):
    """Returns `timed`: the output of `trainer steptime`, and its number of threads."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send the configuration, read the answer."""
        result = super().run(tmp, task_vars)
        plan, host = self._task.args["plan"], self._task.args["host"]
        threads = thread_share(plan["hosts"], host, int(self._task.args["cpus"]))
        completed = self._low_level_execute_command(
            self._command(plan, threads), in_data=plan["config_yaml"].encode(), sudoable=False, executable="/bin/sh"
        )
        if completed["rc"] != 0:
            last = "\n  ".join(completed["stderr"].strip().splitlines()[-8:])
            raise AnsibleActionFail(f"{host}: the model's training step can't be timed (exit code {completed['rc']}):\n  {last}")
        with action.refusing():
            timed = records.answer((completed["stdout"].strip().splitlines() or [""])[-1], f"{host}: steptime")
        result["timed"] = {**timed, "threads": threads}
        return result

    def _command(self, plan: dict[str, Any], threads: int) -> str:
        arguments = self._task.args
        numbers = {
            "classes": len(plan["dataset"]["classes"]),
            "batch": max(1, plan["counts"]["global_batch"] // plan["counts"]["workers"]),
            "threads": threads,
            "seconds": arguments["seconds"],
        }
        options = " ".join(f"--{name} {value}" for name, value in numbers.items())
        paths = f"KERAS_HOME={shlex.quote(arguments['keras'])}"
        environment = (
            f"{paths} CUDA_VISIBLE_DEVICES={gpu_share(plan['hosts'], arguments['host'])} TF_CPP_MIN_LOG_LEVEL=2 OMP_NUM_THREADS={threads}"
        )
        given = next(one for one in plan["hosts"] if one["name"] == arguments["host"]).get("environment", {})
        environment = " ".join([environment, *assignments(given)])
        start = checked_code.command(*(arguments[name] for name in ("python", "code", "code_sha256", "caches")))
        return f"{environment} {shlex.join(start)} -m trainer steptime {options}"
