"""The plan of a run, made by the trainer in a process of its own."""

import json
import secrets
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from plugins.filter.cluster import check_absolute, check_hosts, cluster_hosts
from plugins.shared import control
from trainer.errors import LockstepError, refusal


def hosts(task_vars: dict[str, Any]) -> list[dict[str, Any]]:
    """The inventory's workers, with folders that mean the same for every user and tool.

    Raises:
        AnsibleFilterError: a relative folder.
    """
    found = cluster_hosts(task_vars["hostvars"], task_vars["groups"].get("workers", []))
    for host in found:
        variables = task_vars["hostvars"][host["name"]]
        check_absolute({key: str(variables[key]) for key in ("worker_root", "dfs_path", "worker_caches") if key in variables})
    return found


def make(options: dict[str, Any], found: list[dict[str, Any]], place: str, default_workers: int, packs: str, write: bool) -> dict[str, Any]:
    """The plan of `trainer plan`, with where the run lies.

    Args:
        options: operator variables as typed.
        found: workers of the inventory, in its order.
        place: where runs of this command lie, as in `control.runs_folder`.
        default_workers: how many train when nothing says otherwise.
        packs: folder of published datasets on the control node.
        write: whether caches may be written.

    Raises:
        LockstepError: what the plan refuses.
    """
    folder = control.runs_folder(place)
    request = {
        "options": options,
        "hosts": found,
        "default_workers": default_workers,
        "runs": str(folder),
        "packs": packs,
        "parameter_cache": str(control.PRIVATE / "parameters"),
        "write": write,
    }
    argv = [sys.executable, "-m", "trainer", "plan"]
    done = subprocess.run(argv, input=json.dumps(request), capture_output=True, text=True, cwd=control.ROOT, check=False)
    if done.returncode != 0:
        raise LockstepError(refusal(done.stderr) or done.stderr.strip() or f"the plan failed with exit code {done.returncode}")
    plan: dict[str, Any] = json.loads(done.stdout)
    check_hosts(plan["hosts"])
    return {**plan, "nonce": secrets.token_hex(16), "place": place, "folder": str(Path(folder) / plan["run"])}


def warnings(chosen: list[dict[str, Any]]) -> list[str]:
    """TensorFlow's worker port runs code for whoever reaches it, and it can't be bound to loopback."""
    loopback = all(host["address"].startswith("127.") for host in chosen)
    interfaces = [name for _, name in socket.if_nameindex() if name != "lo"]
    up = [name for name in interfaces if _is_up(name)]
    if not loopback or not up:
        return []
    ports = ", ".join(str(host["port"]) for host in chosen)
    shown = ", ".join(up if len(up) <= 3 else [*up[:2], f"{len(up) - 2} more"])
    return [f"TensorFlow listens on ports {ports} of every interface ({shown}) without a password: use a trusted network or a firewall"]


def _is_up(interface: str) -> bool:
    state = Path(f"/sys/class/net/{interface}/operstate")
    return state.is_file() and state.read_text(encoding="utf-8").strip() == "up"
