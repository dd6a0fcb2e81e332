"""All checks of a cluster: each host alone, then the hosts in comparison, because the slowest decides a synchronous step's time."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from control.doctor.checks.host import SILENT, loopback, of_host, supported, tensorflow
from control.doctor.checks.model import FAIL, OK, WARN, Check, Facts, Hosts, Requirement, Subject, answered, odd
from control.doctor.checks.network import between
from control.doctor.checks.ssh_errors import ssh

EQUAL = {"tensorflow": FAIL, "keras": FAIL, "numpy": WARN}
SLOW_SHARE = 0.8
NETWORK_TYPES = ("nfs", "cifs", "smb", "ceph", "lustre", "9p", "afs", "beegfs", "gpfs", "fuse.glusterfs", "fuse.ceph", "fuse.sshfs")


def examine(hosts: Hosts, facts: Facts, network: Facts | None, need: Requirement) -> list[Check]:
    """All checks, host by host in the order of the inventory, then those between hosts.

    Args:
        hosts: `name`, `address`, `port`; for the fixes also `ssh` (address for SSH), `user`, `ssh_port`.
        facts: results of `host_probe` by host, with `before` and `after`; `{"unreachable": message}` without SSH.
        network: results of `network_probe` by host; None if it was not run.
        need: requirements of the run.
    """
    reached = answered({host["name"]: facts[host["name"]] for host in hosts if host["name"] in facts})
    lost = [host["name"] for host in hosts if host["name"] not in reached]
    checks: list[Check] = []
    for host in hosts:
        name = host["name"]
        if name in lost:
            checks.append(ssh(host, facts.get(name, {}).get("unreachable", "was not probed")))
            continue
        checks.append(Check(OK, name, "ssh", f"reachable as {reached[name].get('user', '?')}"))
        checks += of_host(Subject(host, reached[name], need))
    checks += [*_packages(reached, need), *_machines(reached), *_paces(reached), *_own_folders(reached)]
    checks += _addresses(hosts, reached, network or {})
    if network is not None:
        # Both the control node and the other hosts notice a wrong clock.
        wrong = {check.host for check in checks if check.name == "clock" and check.level != OK}
        later = between(hosts, answered(network), reached)
        checks += [check for check in later if not (check.name == "clock" and check.host in wrong)]
    if lost:
        # A shared folder that does not answer while a host is down waits for that host; this is no separate fault.
        fix = f"GlusterFS waits up to 42 s for {', '.join(lost)}; look again once that is fixed"
        checks = [replace(one, level=WARN, fix=fix) if one.name == "dfs" and SILENT in one.value else one for one in checks]
    order = {host["name"]: rank for rank, host in enumerate(hosts)}
    return sorted(checks, key=lambda check: order.get(check.host, len(order)))


def _packages(facts: Facts, need: Requirement) -> Iterator[Check]:
    """Check for equal versions of packages, and of Python itself, on all hosts."""
    working = {name: host["python"] for name, host in facts.items() if "packages" in host["python"]}
    complete = {name: {**one["packages"], "tensorflow": tensorflow(one["packages"])} for name, one in working.items()}
    for package, level in EQUAL.items():
        versions = {name: packages.get(package, "") for name, packages in complete.items() if packages["tensorflow"]}
        for name, usual in odd(versions):
            value = f"{versions[name] or 'missing'}, the others {usual or 'without'}"
            yield Check(level, name, package, value, usual, f"{need.provision} (installs the locked versions)")
    minor = {name: ".".join(one["version"].split(".")[:2]) for name, one in working.items() if supported(one["version"])}
    fix = "use one version everywhere, so that results can be repeated"
    for name, usual in odd(minor):
        yield Check(WARN, name, "python", f"{minor[name]}, the others {usual}", usual, fix)


def _machines(facts: Facts) -> Iterator[Check]:
    kinds = {name: one["machine"] for name, one in facts.items()}
    for name, usual in odd(kinds):
        fix = "trains; the slower kind sets the pace of all, and where they round differently, steps send the chief's weights, too"
        yield Check(WARN, name, "machine", f"{kinds[name]}, the others {usual}", usual, fix)


def _paces(facts: Facts) -> Iterator[Check]:
    for key, what in (("cpus", "CPUs"), ("speed", "MB/s per core")):
        values = {name: host[key] for name, host in facts.items() if host.get(key)}
        usual = statistics.median(values.values()) if values else 0.0
        for name, value in values.items():
            if value < SLOW_SHARE * usual:
                fix = "the slowest host sets the pace: leave it out, or fix what holds it back"
                yield Check(WARN, name, "speed", f"{value:g} {what}, the others {usual:g}", f"at least {SLOW_SHARE * usual:g}", fix)


def _own_folders(facts: Facts) -> Iterator[Check]:
    """Check that each worker has its own Python, claims and states: in a home shared by all hosts, workers would overwrite each other's."""
    folders = {name: (host["disk"]["path"], host["disk"]["type"], host["disk"]["source"]) for name, host in facts.items()}
    for names in one_folder(folders):
        path, fs_type, source = folders[names[0]]
        value = f"{', '.join(names)} keep their workers in one folder: {path} ({fs_type} of {source})"
        fix = "set worker_root to a local disk, or to a folder that has {{ inventory_hostname }} in its path"
        yield Check(FAIL, names[0], "disk", value, "a worker_root of its own for every host", fix)


def one_folder(places: Mapping[str, tuple[str, str, str]]) -> list[list[str]]:
    """Groups of two or more hosts that see the same folder; `places`: path, type and source of the file system, by host."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, (path, fs_type, source) in places.items():
        if fs_type.startswith(NETWORK_TYPES):
            groups.setdefault((path, source), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _addresses(hosts: Hosts, facts: Facts, network: Facts) -> Iterator[Check]:
    """Check that every worker has its own address, and that the address leads to its host."""
    for rank, host in enumerate(hosts):
        for earlier in hosts[:rank]:
            yield from _same_address(earlier, host, facts)
        if host["name"] in facts:
            yield from _elsewhere(host, facts, network)


def _same_address(first: dict[str, Any], second: dict[str, Any], facts: Facts) -> Iterator[Check]:
    names, address = f"{first['name']} and {second['name']}", first["address"]
    machines = [_machine(facts.get(host["name"])) for host in (first, second)]
    one_machine = machines[0] == machines[1]

    def finding(level: str, value: str, limit: str) -> Check:
        fix = "give each a worker_address (or ansible_host) of its own in the inventory"
        return Check(level, second["name"], "address", f"{names} {value}", limit, fix)

    if (address, first["port"]) == (second["address"], second["port"]):
        yield finding(FAIL, f"both have {address}:{first['port']}", "one worker each")
    elif None in machines:
        return
    elif address == second["address"] and not one_machine:
        yield finding(WARN, f"both have {address}, but are two machines", "one address each")
    elif address != second["address"] and machines[0] and one_machine:
        yield finding(WARN, f"are one machine ({machines[0][1]}) under two addresses", "one machine per host")


def _machine(facts: dict[str, Any] | None) -> tuple[str, str] | None:
    # Containers on one machine share the boot id; two Raspberry Pis may share the name.
    return (facts["boot"], facts["hostname"]) if facts else None


def _elsewhere(host: dict[str, Any], facts: Facts, network: Facts) -> Iterator[Check]:
    name, mine = host["name"], facts[host["name"]]["address"]
    given = str(host["address"])
    others = [other for other, other_facts in facts.items() if other != name and given in other_facts["address"].get("all", [])]
    strangers = [other for other in others if _machine(facts[other]) != _machine(facts[name])]
    if "error" in mine:
        yield Check(FAIL, name, "address", f"{given} does not resolve on it: {mine['error']}", fix="set worker_address to its IP address")
    elif not mine["own"]:
        all_ = ", ".join(mine["all"]) or "none"
        reached = any(other_facts.get("pairs", {}).get(name, {}).get("reachable") for other_facts in network.values())
        fix = f"set worker_address to {mine['all'][0]}" if len(mine["all"]) == 1 else "set worker_address to the one that the others reach"
        yield Check(WARN if reached else FAIL, name, "address", f"{given} is not an address of this host (it has {all_})", "its own", fix)
    elif strangers and not loopback(given):
        fix = "give each machine an address of its own (ip addr shows them)"
        yield Check(FAIL, name, "address", f"{given} is also an address of {', '.join(strangers)}", "one machine per address", fix)
    else:
        yield Check(OK, name, "address", given)
