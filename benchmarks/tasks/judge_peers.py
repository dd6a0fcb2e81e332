"""Check what the probe of the hosts found: their hardware, and whether they are free to be measured."""

import os
from pathlib import Path
from typing import Any

from benchmarks.analysis import peers_results
from benchmarks.analysis.benchmark import ROWS
from control.campaign import SUMMARY, refuse_other
from control.provision import provisioning
from control.runs.cluster import thread_share
from control.task import Task
from trainer.errors import LockstepError
from trainer.files import read_json, write_json

SESSION = "peers=-w"
"""Prefix of this benchmark's sessions; no run's name contains `=`."""


def judge_peers(task: Task) -> dict[str, Any]:
    """Refuse hosts that train, and those without Python.

    Returns the fact `peers_hosts`: for each host its Python, its kind of wheels, its threads and its hardware.
    """
    looked, probed, hosts = task.arguments["looked"], task.arguments["probed"], task.arguments["hosts"]
    hardware = {}
    for host in hosts:
        name = host["name"]
        seen, facts = provisioning.parse(looked[name].get("output", "")), probed[name].get("facts")
        if facts is None:
            raise LockstepError(f"{name} does not answer: {probed[name].get('msg', 'unreachable')}; see ansible-playbook doctor.yml")
        refuse_busy(name, seen.sessions)
        threads = task.arguments.get("threads") or thread_share(hosts, name, max(1, int(facts["cpus"])))
        hardware[name] = {**_wheels(seen), "threads": int(threads), "machine": machine(host, facts)}
    if not task.check_mode:
        folder = Path(task.arguments["folder"])
        path, machines = folder / SUMMARY, [one["machine"] for one in hardware.values()]
        record = read_json(path)
        if peers_results.STORE.read(folder / ROWS):
            machines = continued(record["name"], record.get("machines", []), machines)
        write_json(path, {**record, "machines": machines, "control_cores": os.cpu_count()})
    return {"ansible_facts": {"peers_hosts": hardware}}


def continued(name: str, before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All machines of results that are being extended."""
    by_name = {one["name"]: one for one in [*now, *before]}
    for one in now:
        refuse_other("peers", name, [key for key, value in by_name[one["name"]].items() if one.get(key) != value], one["name"])
    return [by_name[key] for key in sorted(by_name)]


def refuse_busy(host: str, sessions: list[str]) -> None:
    """Refuse a host on which something is training."""
    others = [session for session in sessions if not session.startswith(SESSION)]
    if others:
        raise LockstepError(
            f"{host}: {', '.join(others)} runs there, and would be measured with the benchmark; "
            "wait for it, or stop it (ansible-playbook status.yml, stop.yml)"
        )


def _wheels(seen: provisioning.Look) -> dict[str, Any]:
    """Python and kind of wheels; empty if peers can't be installed."""
    target, python = seen.target, seen.python
    return {
        "python": python[0] if python else "",
        "target": {"machine": target.machine, "python": target.python, "glibc": target.glibc} if target else None,
        "wheels": target.key if target else "",
    }


def machine(host: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
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
