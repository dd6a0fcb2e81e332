"""The network between hosts: every pair reaches each other, and large packets pass."""

import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from control.doctor.checks.clocks import clocks
from control.doctor.checks.links import BANDWIDTH, DELAY, Scale, culprits, each_pair, slow_links, slow_ring
from control.doctor.checks.model import FAIL, OK, WARN, Check, Facts, Hosts, odd, on

WIRED = ("delay", "bandwidth", "ring", "network")
"""Findings fixed at cables and switches."""
BUSY = "these are workers of one machine, without cables between them: end what else runs there (top shows it)"

UNREACHABLE = {
    "refused": "on {there}: a firewall that rejects? sudo nft list ruleset; the port must be open for all workers",
    "timeout": "a firewall drops it, or the address is wrong: open TCP port {port} of {there} for all workers",
    "no_route": "is {there} on, and in the same network? On {here}: ip route get {address}",
    "name": "set worker_address of {there} to its IP address",
    "silent": "on {there}: sudo ss -ltnp 'sport = :{port}' shows the program; end it, or set another {variable}",
    "stranger": "on {there}: sudo ss -ltnp 'sport = :{port}' shows the program; end it, or set another {variable}",
    "other_run": "another doctor is at work there; wait and run this one again",
    "wrong_host": "two hosts have one address: give each a worker_address of its own",
    "other": "on {here}: nc -vz {address} {port}",
}


def between(hosts: Hosts, network: Facts, facts: Facts) -> list[Check]:
    """Every pair: whether reachable, delay, bandwidth, and whether large packets pass."""
    checks = [*_busy(network)]
    busy = {check.host for check in checks}
    checks += [*_unreachable(hosts, network, busy), *_vanishing(network), *_lost(network), *clocks(network), *_mtus(network)]
    checks += [*slow_links(network, DELAY, facts), *slow_links(network, BANDWIDTH, facts), *slow_ring(network)]
    if all(host["address"].startswith("127.") for host in hosts):
        checks = [replace(check, fix=BUSY) if check.name in WIRED else check for check in checks]
    return [*checks, *_summary(network, {check.host for check in checks})]


def _busy(network: Facts) -> Iterator[Check]:
    fix = "end the program that holds it, or set another worker_port or worker_direct_port"
    for name, results in network.items():
        if results.get("listening"):
            yield Check(FAIL, name, "listen", f"could not listen: {results['listening']}", "free", fix)


def _unreachable(hosts: Hosts, network: Facts, busy: set[str]) -> Iterator[Check]:
    for host in hosts:
        name = host["name"]
        asked = {caller: results["pairs"][name] for caller, results in network.items() if name in results["pairs"]}
        failed = {caller: pair for caller, pair in asked.items() if not pair["reachable"]}
        if not failed or name in busy:
            continue
        # One host that nobody reaches is one problem, not one per pair.
        by_all = len(failed) == len(asked) > 1
        shown = dict([_most_telling(failed)]) if by_all else failed
        for caller, pair in shown.items():
            port = pair.get("port", host["port"])
            variable = "worker_port" if port == host["port"] else "worker_direct_port"
            words = {"here": caller, "there": name, "port": port, "address": host["address"], "variable": variable}
            value = f"{name} ({host['address']}:{port}) can't be reached from {'any host' if by_all else caller}: {pair['error']}"
            yield Check(FAIL, name if by_all else caller, "reach", value, "reachable", UNREACHABLE[pair["kind"]].format(**words))


def _most_telling(failed: dict[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """The most informative of several failures to reach a host; silence is the least informative."""
    return min(failed.items(), key=lambda one: one[1]["kind"] == "timeout")


def _vanishing(network: Facts) -> Iterator[Check]:
    measured = {(sender, receiver): pair for sender, receiver, pair in each_pair(network) if "mtu_trouble" in pair}
    bad = {pair for pair, result in measured.items() if result["mtu_trouble"]}
    limit = "all sizes pass"
    fix = "set the smallest MTU of the path on {} (sudo ip link set dev INTERFACE mtu 1400), or let ICMP through"
    for host in [] if len(bad) == len(measured) else culprits(measured, bad):
        bad = {pair for pair in bad if host not in pair}
        yield Check(FAIL, host, "mtu", f"on all links of {host} small packets pass and large ones are lost", limit, fix.format("all hosts"))
    for sender, receiver in sorted(bad):
        value = f"to {receiver} small packets pass and large ones are lost (MTU here {measured[sender, receiver].get('mtu', '?')})"
        yield Check(FAIL, sender, "mtu", value, limit, fix.format(f"{sender} and {receiver}"))


def _lost(network: Facts) -> Iterator[Check]:
    for sender, receiver, pair in each_pair(network):
        if pair["reachable"] and "error" in pair:
            fix = f"run the doctor again; then look at the cables of {sender} and {receiver}"
            yield Check(WARN, sender, "network", f"to {receiver}: {pair['error']}", fix=fix)


def _mtus(network: Facts) -> Iterator[Check]:
    mtus = {host: [pair["mtu"] for pair in results["pairs"].values() if "mtu" in pair] for host, results in network.items()}
    largest = {host: max(values) for host, values in mtus.items() if values}
    for host, usual in odd(largest):
        value = f"{largest[host]}, the others {usual}"
        fix = on(host, f"sudo ip link set dev INTERFACE mtu {usual}, and the same on the switch")
        yield Check(WARN, host, "mtu", value, str(usual), fix)


def _summary(network: Facts, troubled: set[str]) -> Iterator[Check]:
    for host, results in network.items():
        if host in troubled or not results["pairs"]:
            continue
        pairs = list(results["pairs"].values())
        reached = f"reaches {sum(pair['reachable'] for pair in pairs)} of {len(pairs)} others"
        parts = [reached, _median(pairs, DELAY), _median(pairs, BANDWIDTH)]
        yield Check(OK, host, "network", ", ".join(part for part in parts if part))


def _median(pairs: list[dict[str, Any]], scale: Scale) -> str:
    values = [pair[scale.key] for pair in pairs if pair.get(scale.key) is not None]
    return scale.show(statistics.median(values)) if values else ""
