"""Names and addresses: every worker has its own, and is really there."""

import ipaddress
from collections.abc import Iterator
from typing import Any

from control.doctor.checks.model import FAIL, OK, WARN, Check, Facts, Hosts, Subject


def own_name(subject: Subject) -> Iterator[Check]:
    """A host whose own name resolves to its loopback must not be addressed by that name."""
    facts, given = subject.facts, str(subject.host["address"])
    own, resolved, called = facts["name"].get("addresses", []), facts["address"].get("addresses", []), facts["hostname"]
    fix = f"on it, in /etc/hosts, give {called} its address instead of {', '.join(own) or '127.0.1.1'}"
    limit = "an address the others reach"
    if not _is_ip(given) and resolved and all(map(loopback, resolved)) and given != "localhost":
        value = f"{given} resolves to {', '.join(resolved)} on the host itself"
        yield subject.check(FAIL, "name", value, limit, f"set worker_address to its IP address; or {fix}")
    elif "error" in facts["name"]:
        value = f"{called} does not resolve: {facts['name']['error']}"
        yield subject.check(WARN, "name", value, fix=f"on it, add {called} to /etc/hosts")
    elif own and all(map(loopback, own)) and not loopback(given) and given != "localhost":
        value = f"{called} resolves to {', '.join(own)} on the host itself"
        yield subject.check(WARN, "name", value, limit, f"harmless while worker_address is an IP address; or {fix}")
    else:
        yield subject.check(OK, "name", f"{called} is {', '.join(own)}")


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
