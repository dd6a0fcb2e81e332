"""Make and show the plan of `train.yml`; nothing on any host is touched."""

import json
import secrets
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from plugins.filter.cluster import check_absolute, check_hosts, cluster_hosts
from plugins.shared import control
from trainer.analysis import text
from trainer.errors import LockstepError
from trainer.plan import truth


class ActionModule(control.ControlAction):
    """Returns the facts `plan` and `cluster`."""

    def act(self) -> dict[str, Any]:
        """Validate what was typed, resolve it, show it."""
        command = self.arguments.get("command", "train")
        options = control.operator_options(command, self.task_vars)
        truth("preflight", options.get("preflight", True))
        hosts = cluster_hosts(self.task_vars["hostvars"], self.task_vars["groups"].get("workers", []))
        for host in hosts:
            check_absolute(self._folders(host["name"]))
        plan = self._plan(_selftest(options) if command == "doctor" else options, hosts)
        check_hosts(plan["hosts"])
        already = {"show_last": _already(plan)} if plan["complete"] else {}
        return {
            **already,
            "show": text.plan(plan, control.relative(Path(plan["folder"]).parent), _warnings(plan["hosts"])),
            "ansible_facts": {"plan": plan, "cluster": plan["hosts"], "run_options": options},
        }

    def _folders(self, name: str) -> dict[str, str]:
        """What a host's inventory says of folders, as it is on that host."""
        variables = self.task_vars["hostvars"][name]
        return {key: str(variables[key]) for key in ("worker_root", "dfs_path", "worker_caches") if key in variables}

    def _plan(self, options: dict[str, Any], hosts: list[dict[str, Any]]) -> dict[str, Any]:
        place = self.arguments.get("place", "runs")
        request = {
            "options": options,
            "hosts": hosts,
            "default_workers": int(self._templar.template(self.arguments.get("default_workers", len(hosts)))),
            "runs": str(control.runs_folder(place)),
            "packs": self.arguments["packs"],
            "parameter_cache": str(control.PRIVATE / "parameters"),
            "write": not self._task.check_mode,
        }
        argv = [sys.executable, "-m", "trainer", "plan"]
        done = subprocess.run(argv, input=json.dumps(request), capture_output=True, text=True, cwd=control.ROOT, check=False)
        if done.returncode != 0:
            raise LockstepError(done.stderr.strip().removeprefix("error: ") or f"the plan failed with exit code {done.returncode}")
        plan: dict[str, Any] = json.loads(done.stdout)
        return {**plan, "nonce": secrets.token_hex(16), "place": place, "folder": str(control.runs_folder(place) / plan["run"])}


def _selftest(options: dict[str, Any]) -> dict[str, Any]:
    """The doctor's own run: two steps of what was asked for, under a name that no other run has."""
    truth("selftest", options.get("selftest", True))
    return {**options, "selftest": True, "run": f"selftest-{secrets.token_hex(4)}"}


def _already(plan: dict[str, Any]) -> str:
    """The result of a run that is complete already."""
    folder = Path(plan["folder"])
    shown = control.shown_result(folder, control.read_summary(folder))
    return f"Nothing to do: {plan['counts']['epochs']} epochs are done already.\n\n{shown}"


def _warnings(hosts: list[dict[str, Any]]) -> list[str]:
    """TensorFlow's worker port runs code for whoever reaches it, and it can't be bound to loopback."""
    loopback = all(host["address"].startswith("127.") for host in hosts)
    interfaces = [name for _, name in socket.if_nameindex() if name != "lo"]
    up = [name for name in interfaces if _is_up(name)]
    if not loopback or not up:
        return []
    ports = ", ".join(str(host["port"]) for host in hosts)
    shown = ", ".join(up if len(up) <= 3 else [*up[:2], f"{len(up) - 2} more"])
    return [f"TensorFlow listens on ports {ports} of every interface ({shown}) without a password: use a trusted network or a firewall"]


def _is_up(interface: str) -> bool:
    state = Path(f"/sys/class/net/{interface}/operstate")
    return state.is_file() and state.read_text(encoding="utf-8").strip() == "up"
