"""The hosts of `benchmarks/peers.yml`: whether they are free, their hardware, the environments of the peers that they can have."""

import os
from pathlib import Path
from typing import Any

from ansible.utils.display import Display

from benchmarks.peer_results import peers_results, peers_wheels
from benchmarks.shared.benchmark import ROWS
from control.campaign.store import SUMMARY, refuse_other
from control.common import command_line
from control.common.progress_line import Line
from control.common.task import Task
from control.provision import findings, wheels
from control.runs.hosts.inventory_hosts import thread_share
from trainer.common.errors import LockstepError
from trainer.common.files import read_json, write_json
from trainer.common.plain_values import from_plain
from trainer.rundir.launch_record import Host

SESSION = "peers=-w"
"""Prefix of this benchmark's sessions; no run's name contains `=`."""


def judge(task: Task) -> dict[str, Any]:
    """Judge what the probe found: refuse hosts that train, and those without Python.

    Returns the fact `peers_hosts`: for each host its Python, its kind of wheels, its threads and its hardware.
    """
    looked, probed, hosts = task.arguments["looked"], task.arguments["probed"], task.arguments["hosts"]
    hardware = {}
    for host in hosts:
        name = host["name"]
        seen, facts = findings.Look.of(looked[name].get("output", "")), probed[name].get("facts")
        if facts is None:
            raise LockstepError(f"{name} does not answer: {probed[name].get('msg', 'unreachable')}; see ansible-playbook doctor.yml")
        _refuse_busy(name, seen.sessions)
        threads = task.arguments.get("threads") or thread_share([from_plain(Host, one) for one in hosts], name, max(1, int(facts["cpus"])))
        hardware[name] = {**_wheels(seen), "threads": int(threads), "machine": _machine(host, facts)}
    if not task.check_mode:
        folder = Path(task.arguments["folder"])
        path, machines = folder / SUMMARY, [one["machine"] for one in hardware.values()]
        record = read_json(path)
        if peers_results.STORE.read(folder / ROWS):
            machines = _continued(record["name"], record.get("machines", []), machines)
        write_json(path, {**record, "machines": machines, "control_cores": os.cpu_count()})
    return {"ansible_facts": {"peers_hosts": hardware}}


def _continued(name: str, before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All machines of results that are being extended."""
    by_name = {one["name"]: one for one in [*now, *before]}
    for one in now:
        refuse_other("peers", name, [key for key, value in by_name[one["name"]].items() if one.get(key) != value], one["name"])
    return [by_name[key] for key in sorted(by_name)]


def _refuse_busy(host: str, sessions: list[str]) -> None:
    """Refuse a host on which something is training."""
    others = [session for session in sessions if not session.startswith(SESSION)]
    if others:
        raise LockstepError(
            f"{host}: {', '.join(others)} runs there, and would be measured with the benchmark; "
            "wait for it, or stop it (ansible-playbook status.yml, stop.yml)"
        )


def _wheels(seen: findings.Look) -> dict[str, Any]:
    """Python and kind of wheels; empty if peers can't be installed."""
    target, python = seen.target, seen.python
    return {
        "python": python[0] if python else "",
        "target": {"machine": target.machine, "python": target.python, "glibc": target.glibc} if target else None,
        "wheels": target.key if target else "",
    }


def _machine(host: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Hardware of a host, for the record."""
    return {
        "name": host["name"],
        "address": host["address"],
        "model": facts["model"],
        "cores": facts["cores"],
        "cpus": facts["cpus"],
        "memory_mb": facts["memory"]["total_mb"],
        "os": facts["os"],
        "packages": facts["python"].get("packages", {}),
    }


def gather(task: Task) -> dict[str, Any]:
    """Gather the wheels of each environment for each kind of host, on the control node; what is unavailable is noted, with the reason.

    Returns the facts `peers_wheels` (environment to kind of host to folder) and `peers_missing` (environment to reason).
    """
    line = Line(Display(), command_line.terminal(), every=10)
    gathered: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    for environment in task.arguments["environments"]:
        try:
            gathered[environment] = _gather(environment, task.arguments["hosts"], line)
        except LockstepError as error:
            missing[environment] = str(error)
            line.print(f"{environment} can't be measured: {error}")
    line.end()
    return {"ansible_facts": {"peers_wheels": gathered, "peers_missing": missing}}


def _gather(environment: str, hosts: dict[str, Any], line: Line) -> dict[str, Any]:
    unfit = [name for name, host in hosts.items() if not host["target"]]
    if unfit:
        raise LockstepError(f"{unfit[0]} has no Python from 3.11 to 3.13")
    # Peers are measured on CPUs, so their environments are the same on hosts with GPUs.
    targets = wheels.merged(wheels.Target(**{**host["target"], "gpu": False}) for host in hosts.values())
    needs = {"need_mb": peers_wheels.NEED_MB[environment], "modules": peers_wheels.MODULES[environment]}
    return {target.key: peers_wheels.gather(environment, target, line.update) | needs for target in targets}


def note(task: Task) -> dict[str, Any]:
    """Note which environment could not be set up, and the first host's reason: the benchmark continues without it.

    Adds to the fact `peers_missing`.
    """
    environment, results, missing = task.arguments["environment"], task.arguments["made"], task.arguments["missing"]
    failed = [str(result.get("msg", "no answer")) for result in results.values() if result.get("failed")]
    if not failed:
        return {}
    shown = f"{environment} can't be measured: {failed[0]}"
    return {"show": shown, "ansible_facts": {"peers_missing": {**missing, environment: failed[0]}}}
