"""The time that this host alone takes for a step of the plan's model."""

import json
import shlex
from typing import Any

from ansible.errors import AnsibleActionFail

from control.common.plan import Plan
from control.common.worker_environment import assignments
from control.remote import checked_code, worker_files
from control.runs.hosts.inventory_hosts import gpu_share, thread_share
from plugins.shared.base_action import Action
from trainer.common.plain_values import from_plain


class ActionModule(Action):
    """Returns `timed`: the output of `trainer steptime`, and its number of threads."""

    def act(self, plan: dict[str, Any], host: str, cpus: Any, **arguments: Any) -> dict[str, Any]:
        """Send the configuration, read the answer."""
        planned = from_plain(Plan, plan)
        threads = thread_share(planned.hosts, host, int(cpus))
        command = _command(planned, host, threads, arguments)
        given = json.dumps({"config": planned.config_yaml, "spec": planned.dataset.get("spec")})
        completed = self._low_level_execute_command(command, in_data=given.encode(), sudoable=False, executable="/bin/sh")
        if completed["rc"] != 0:
            last = "\n  ".join(completed["stderr"].strip().splitlines()[-8:])
            raise AnsibleActionFail(f"{host}: the model's training step can't be timed (exit code {completed['rc']}):\n  {last}")
        timed = worker_files.step_time((completed["stdout"].strip().splitlines() or [""])[-1], host)
        return {"timed": {**timed, "threads": threads}}


def _command(plan: Plan, host: str, threads: int, arguments: dict[str, Any]) -> str:
    numbers = {
        "classes": len(plan.dataset["classes"]),
        "batch": max(1, plan.counts["global_batch"] // plan.counts["workers"]),
        "workers": plan.counts["workers"],
        "threads": threads,
        "seconds": arguments["seconds"],
    }
    options = " ".join(f"--{name} {value}" for name, value in numbers.items())
    environment = [
        f"CUDA_VISIBLE_DEVICES={gpu_share(plan.hosts, host)}",
        f"OMP_NUM_THREADS={threads}",
        *assignments(next(one for one in plan.hosts if one.name == host).environment, arguments["caches"]),
    ]
    start = checked_code.command(*(arguments[name] for name in ("python", "code", "code_sha256", "caches")))
    return f"{' '.join(environment)} {shlex.join(start)} -m trainer steptime {options}"
