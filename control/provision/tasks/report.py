"""The result of provisioning: one row per host, and the next commands; of `-e state=absent`, what remains."""

from typing import Any

from control.common import text
from control.common.task import Task


def report(task: Task) -> dict[str, Any]:
    """Shows the table at the end."""
    hosts, plan = task.arguments["hosts"], task.arguments["plan"]
    rows = [_row(member["name"], hosts[member["name"]], plan, task.arguments, task.check_mode) for member in plan["members"]]
    header = ["host", "machine", "Python", "packages", "environment", "DFS", "firewall", "after a restart"]
    commands = [
        ("look", "ansible-playbook doctor.yml"),
        ("train", "ansible-playbook train.yml"),
        ("take it away", "ansible-playbook provision.yml -e state=absent"),
    ]
    table = text.table(header, rows)
    system = ", ".join(sorted({host["system"] for host in hosts.values()}))
    what = "would be provisioned; nothing was changed" if task.check_mode else "are provisioned"
    return {"show_last": f"{len(rows)} hosts {what} ({system})\n{table}\n\n{text.next_commands(commands)}"}


def _row(name: str, host: dict[str, Any], plan: dict[str, Any], arguments: dict[str, Any], check: bool = False) -> list[str]:
    """One host: what it is, and what was done there, or would be."""
    new = len(arguments["packages"][name].get("installed", []))
    environment = arguments["environments"][name]
    state = f"made in {environment['seconds']:.0f} s" if environment.get("seconds") else "in place"
    return [
        name,
        host["machine"],
        host["python_version"],
        f"{new} {'to install' if check else 'installed'}" if new else "in place",
        "to be made" if check and environment.get("changed") else state,
        f"{plan['kind']} on {arguments['path']}",
        f"{len(plan['addresses'])} addresses" if plan["firewall"] else "off",
        _resumes(arguments["resumes"][name], host),
    ]


def _resumes(made: dict[str, Any], host: dict[str, Any]) -> str:
    """Restart of supervised workers after a reboot of the host: `_resumes`, `off` or why not."""
    return str(made.get("resumes") or ("no: it takes root" if host["root_refused"] else "off"))


def removed(task: Task) -> dict[str, Any]:
    """Shows one row per host at the end."""
    packages = task.arguments["packages"].items()
    rows = [[name, str(len(one.get("removed", []))), ", ".join(one.get("kept", [])) or "-"] for name, one in packages]
    what = "would be removed; nothing was changed" if task.check_mode else "is removed; runs stay in worker_root/runs"
    head = f"What provisioning put on {len(rows)} hosts {what}"
    commands = [("put it back", "ansible-playbook provision.yml")]
    return {"show_last": f"{head}\n{text.table(['host', 'packages removed', 'kept'], rows)}\n\n{text.next_commands(commands)}"}
