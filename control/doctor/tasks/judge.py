"""Judge every host's probes: show the findings, write them down, refuse if training can't start."""

import hashlib
from pathlib import Path
from typing import Any

from control.common import command_line, project
from control.common.plan import Plan
from control.common.task import Task
from control.doctor.checks import report
from control.doctor.checks.across import examine
from control.doctor.checks.model import Facts, Requirement
from control.runs.launch import recent_check
from trainer.common.files import write_json, write_text
from trainer.common.plain_values import to_plain
from trainer.rundir.launch_record import Host


def judge(task: Task) -> dict[str, Any]:
    """Judge the hosts, unless the run is already under way: its own workers hold ports and memory.

    Returns the fact `diagnosis`: checks, facts and network, as in the JSON file.
    """
    plan, fast = task.plan, bool(task.arguments["fast"])
    facts, network = _facts(task.arguments["looked"]), _network(task.arguments["tried"])
    if fast and all(host.get("port", {}).get("run") == plan.run for host in facts.values()):
        return {}
    hosts = [_host(task, host) for host in plan.posts]
    need = _requirement(plan, task.arguments["token"], _published(facts, task.arguments["files"]))
    findings = examine(hosts, facts, network, need)
    document = report.document(findings, facts, network)
    path = _write(task, plan, document, fast)
    if path:
        recent_check.keep_if(document["ok"])
    text = report.render(findings, verbose=not fast)
    if network and not fast and (matrix := report.matrix(network)):
        text += f"\n\n{matrix}"
    if not document["ok"]:
        where = f"all findings: {project.relative(path)}" if path else "ansible-playbook doctor.yml shows more"
        skip = "; to start without this check: -e preflight=false" if fast else ""
        return {"failed": True, "msg": f"{text}\n\n{where}{skip}"}
    if path and fast:
        recent_check.note(plan, text)
    return {"show": text, "ansible_facts": {"diagnosis": document}}


def _host(task: Task, host: Host) -> dict[str, Any]:
    """The host with the SSH details that its fixes name."""
    variables = task.task_vars["hostvars"][host.name]
    names = {"ssh": "ansible_host", "user": "ansible_user", "ssh_port": "ansible_port"}
    return {**to_plain(host), **{key: variables[variable] for key, variable in names.items() if variable in variables}}


def _write(task: Task, plan: Plan, document: dict[str, Any], fast: bool) -> Path | None:
    """Write the doctor's file; for a preflight, the file in the run directory and the state of a run that can't start."""
    if task.check_mode:
        return None
    if not fast:
        write_json(project.PRIVATE / "doctor.json", document)
        return project.PRIVATE / "doctor.json"
    folder = plan.folder
    write_json(folder / "preflight.json", document)
    if not document["ok"] and not plan.resume:
        write_text(folder / "config.yml", plan.asked_yaml)
        write_json(folder / "summary.json", {"state": "FAILED_PREFLIGHT", "workers": len(plan.hosts)})
    return folder / "preflight.json"


def _facts(looked: dict[str, dict[str, Any]]) -> Facts:
    """Each host's facts; a host whose module failed counts as unreachable."""
    return {
        name: result["facts"] if "facts" in result else {"unreachable": result.get("msg", "no answer")} for name, result in looked.items()
    }


def _network(tried: dict[str, dict[str, Any]]) -> Facts | None:
    """Each host's measurements; None if there was nothing to measure (one host)."""
    measurements = {name: result for name, result in tried.items() if "pairs" in result}
    return measurements if any(result["pairs"] for result in measurements.values()) else None


def _published(facts: Facts, files: dict[str, str]) -> dict[str, str | None]:
    """Published files that all hosts must read because some host can: path -> SHA-256.

    A file that no host has is not published yet; `train.yml` does that.
    """
    readable = {one["path"] for host in facts.values() for one in host.get("tokens", []) if "error" not in one}
    return {path: sha256 for path, sha256 in files.items() if path in readable}


def _requirement(plan: Plan, token: str, files: dict[str, str | None]) -> Requirement:
    digest = hashlib.sha256(plan.run.encode()).hexdigest()
    needs: dict[str, Any] = {key: plan.needs[key] for key in ("memory_mb", "server_mb", "disk_mb", "disk_whole_mb")}
    inventory = project.relative(command_line.inventory())
    of_run: dict[str, Any] = {"run": plan.run, "queued": bool(plan.ticket), "inventory": inventory}
    return Requirement(**needs, token=(token, digest) if token else None, files=files, **of_run)
