"""Judge the look at the hosts: all problems of all hosts at once, before the first change."""

from typing import Any

from control.common.task import Task
from control.provision import findings
from control.provision.findings import Look


def check(task: Task) -> dict[str, Any]:
    """Returns the fact `provision_hosts`: the facts of each host for later stages."""
    seen, plan = task.arguments["seen"], task.arguments["plan"]
    lost = [_unreachable(host, one["unreachable_because"]) for host, one in seen.items() if "unreachable_because" in one]
    members = {member["name"]: member for member in plan["members"]}
    looks = {host: Look.of(one["output"]) for host, one in seen.items() if "output" in one}
    for host, look in looks.items():
        look.sudo_reason = task.arguments["sudo"][host].get("reason", "")
        look.gpus = members[host].get("gpus", 0)
    problems = lost
    for host, look in looks.items():
        problems += _judge(task, host, look, seen[host]["password"], plan)
    if plan["state"] == "present" and plan["kind"] != "local":
        problems += findings.shared_refusals(looks)
    if plan["state"] == "present":
        problems += findings.folder_refusals(looks)
    findings.refuse(problems, "removed now" if plan["state"] == "absent" else "provisioned like this")
    facts = {
        host: {**look.fact(), "wanted": seen[host]["wanted"], "root_refused": look.sudo_refusal(seen[host]["password"]) or ""}
        for host, look in looks.items()
    }
    return {"ansible_facts": {"provision_hosts": facts}}


def _judge(task: Task, host: str, look: Look, password: bool, plan: dict[str, Any]) -> list[str]:
    if plan["state"] == "absent":
        return look.removal_refusals(host, password, plan["kind"])
    needs_root = look.needs_root(plan["kind"], plan["firewall"])
    need_mb = int(task.arguments["need_gpu_mb" if look.gpus else "need_mb"])
    return look.refusals(host, needs_root, password, plan["kind"] == "glusterfs", need_mb)


def _unreachable(host: str, why: str) -> str:
    """One line for a host that can't be reached."""
    return f"{host}: can't be reached ({' '.join(why.split())}); see that it is on and that `ssh` gets there, then run this again"
