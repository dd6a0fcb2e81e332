"""Names and addresses: every worker has its own, and is really there."""

import ipaddress
from collections.abc import Iterator
from typing import Any

from control.doctor.checks.model import FAIL, OK, WARN, Check, Facts, Hosts


def own_name(host: dict[str, Any], facts: dict[str, Any]) -> Check:
    """A host whose own name resolves to its loopback must not be addressed by that name."""
    found = facts["name"].get("addresses", [])
    given, meant = str(host["address"]), facts["address"].get("addresses", [])
    name, called = host["name"], facts["hostname"]
    fix = f"on it, in /etc/hosts, give {called} its address instead of {', '.join(found) or '127.0.1.1'}"
    if not _is_ip(given) and meant and all(map(loopback, meant)) and given != "localhost":
        value = f"{given} means {', '.join(meant)} on the host itself"
        return Check(FAIL, name, "name", value, "an address the others reach", f"set worker_address to its IP address; or {fix}")
    if "error" in facts["name"]:
        return Check(WARN, name, "name", f"{called} can't be resolved: {facts['name']['error']}", fix=f"on it, add {called} to /etc/hosts")
    if found and all(map(loopback, found)) and not loopback(given) and given != "localhost":
        value = f"{called} means {', '.join(found)} on the host itself"
        return Check(WARN, name, "name", value, "an address the others reach", f"harmless while worker_address is an IP address; or {fix}")
    return Check(OK, name, "name", f"{called} is {', '.join(found)}")


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def loopback(address: str) -> bool:
    """Whether this IP address is a loopback address. A name is not."""
    return _is_ip(address) and ipaddress.ip_address(address.partition("%")[0]).is_loopback


def addresses(hosts: Hosts, facts: Facts, network: Facts) -> Iterator[Check]:
    """Every worker has its own address, and is really there."""
    for rank, host in enumerate(hosts):
        for earlier in hosts[:rank]:
            yield from _same_place(earlier, host, facts)
        if host["name"] in facts:
            yield from _elsewhere(host, facts, network)


def _same_place(first: dict[str, Any], second: dict[str, Any], facts: Facts) -> Iterator[Check]:
    names = f"{first['name']} and {second['name']}"
    fix = "give each a worker_address (or ansible_host) of its own in the inventory"
    machines = [_machine(facts.get(host["name"])) for host in (first, second)]
    if first["address"] == second["address"]:
        if first["port"] == second["port"]:
            yield Check(FAIL, second["name"], "address", f"{names} both have {first['address']}:{first['port']}", "one worker each", fix)
        elif None not in machines and machines[0] != machines[1]:
            yield Check(
                WARN, second["name"], "address", f"{names} both have {first['address']}, but are two machines", "one address each", fix
            )
    elif machines[0] is not None and machines[0] == machines[1]:
        yield Check(
            WARN, second["name"], "address", f"{names} are one machine ({machines[0][1]}) under two addresses", "a machine each", fix
        )


def _machine(facts: dict[str, Any] | None) -> tuple[str, str] | None:
    # Containers on one machine share the boot id; two Raspberry Pis may share the name.
    return (facts["boot"], facts["hostname"]) if facts else None


def _elsewhere(host: dict[str, Any], facts: Facts, network: Facts) -> Iterator[Check]:
    name, mine = host["name"], facts[host["name"]]["address"]
    given = str(host["address"])
    others = [other for other, found in facts.items() if other != name and given in found["address"].get("all", [])]
    strangers = [other for other in others if _machine(facts[other]) != _machine(facts[name])]
    if "error" in mine:
        yield Check(FAIL, name, "address", f"{given} can't be resolved on it: {mine['error']}", fix="set worker_address to its IP address")
    elif not mine["own"]:
        all_ = ", ".join(mine["all"]) or "none"
        reached = any(found.get("pairs", {}).get(name, {}).get("reachable") for found in network.values())
        fix = f"set worker_address to {mine['all'][0]}" if len(mine["all"]) == 1 else "set worker_address to the one that the others reach"
        yield Check(WARN if reached else FAIL, name, "address", f"{given} is not an address of this host (it has {all_})", "its own", fix)
    elif strangers and not loopback(given):
        fix = "give each machine an address of its own (ip addr shows them)"
        yield Check(FAIL, name, "address", f"{given} is also an address of {', '.join(strangers)}", "one machine an address", fix)
    else:
        yield Check(OK, name, "address", given)
