"""Checks of the network between hosts: every pair is connected, large packets pass, and each link is compared with the good ones."""

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from control.common.text import listed
from control.doctor.checks.host import CLOCK_WARN_S, set_clock, span
from control.doctor.checks.model import FAIL, OK, WARN, Check, Facts, Hosts, odd, on

SLOW_LINK_SHARE = 0.5
"""Share of the good links' rate below which a link is slow."""
SLOW_LINK_MBIT_S = 50.0
"""Rate below which a link is slow, however slow the other links are."""
LONG_RTT_MS = 5.0
LOOK = "on {there}: sudo ss -ltnp 'sport = :{port}' shows the program; end it, or set another {variable}"
UNREACHABLE = {
    "refused": "on {there}: a firewall that rejects? sudo nft list ruleset; the port must be open for all workers",
    "timeout": "a firewall drops it, or the address is wrong: open TCP port {port} of {there} for all workers",
    "no_route": "is {there} on, and in the same network? On {here}: ip route get {address}",
    "name": "set worker_address of {there} to its IP address",
    "silent": LOOK,
    "stranger": LOOK,
    "other_run": "another doctor is at work there; wait and run this one again",
    "wrong_host": "two hosts have one address: give each a worker_address of its own",
    "other": "on {here}: nc -vz {address} {port}",
}
Link = tuple[str, str]
"""Sending and receiving host."""


@dataclass(frozen=True)
class Scale:
    """Rule for judging one measure of a link."""

    key: str
    name: str
    unit: str
    decimals: int
    more_is_better: bool
    advise: Callable[[list[str], Facts, Facts], str]
    """Fix for the links of these hosts (empty: all hosts), from the links and the hosts' own facts."""

    def limit(self, good: float) -> float:
        """The limit for a link, if good links have `good`."""
        return max(SLOW_LINK_SHARE * good, SLOW_LINK_MBIT_S) if self.more_is_better else max(3 * good, LONG_RTT_MS)

    def good(self, values: Iterable[float]) -> float:
        """Value of a good link: only a fifth of the links are better. The median would not do: one bad host among three makes it bad."""
        ranked = sorted(values, reverse=not self.more_is_better)
        return ranked[round(0.8 * (len(ranked) - 1))]

    def show(self, value: float) -> str:
        """The value with its unit."""
        return f"{value:,.{self.decimals}f} {self.unit}"


def _look_at_cables(names: list[str], *_: object) -> str:
    return f"look at the cable and switch port of {listed(names) or 'every host'}: sudo ethtool INTERFACE | grep Speed"


def _find_the_wait(names: list[str], network: Facts, facts: Facts) -> str:
    """Cause of late answers: a busy processor, Wi-Fi, or the path."""
    loads = {name: facts[name] for name in names or network if facts.get(name, {}).get("load") is not None}
    busy = [f"{name} (load {one['load']:.1f} on {one['cores']} cores)" for name, one in loads.items() if one["load"] > one["cores"] / 2]
    begin = f"busy: {', '.join(busy)}; end what else runs there and run the doctor again. If it stays: " if busy else ""
    quickest = [pair["rtt_min_ms"] for link, pair in each_link(network) if "rtt_min_ms" in pair and set(link).issuperset(names)]
    far = bool(quickest) and statistics.median(quickest) > LONG_RTT_MS
    way = "a network far away, or a VPN: even the fastest answer took that long; use hosts on one switch"
    wifi = f"Wi-Fi, or a port that saves power: connect {listed(names) or 'every host'} by cable to the others' switch"
    return begin + (way if far else wifi)


DELAY = Scale("rtt_ms", "delay", "ms", 1, False, _find_the_wait)
BANDWIDTH = Scale("mbit_s", "bandwidth", "Mbit/s", 0, True, _look_at_cables)


def between(hosts: Hosts, network: Facts, facts: Facts) -> list[Check]:
    """Checks of every pair: connection, delay, bandwidth, and large packets."""
    checks = [*_busy(network)]
    busy = {check.host for check in checks}
    checks += [*_unreachable(hosts, network, busy), *_vanishing(network), *_lost(network), *_clocks(network), *_mtus(network)]
    # Between workers of one machine there is no link to repair: its speed depends on the machine's load at the moment.
    if not all(host["address"].startswith("127.") for host in hosts):
        checks += [*_slow_links(network, DELAY, facts), *_slow_links(network, BANDWIDTH, facts), *_slow_ring(network)]
    return [*checks, *_summary(network, {check.host for check in checks})]


def each_link(network: Facts) -> Iterator[tuple[Link, dict[str, Any]]]:
    """Every link, with its measurements."""
    for host, results in network.items():
        yield from (((host, other), pair) for other, pair in results["pairs"].items())


def _blamed(measured: Iterable[Link], bad: set[Link]) -> tuple[list[str], list[Link]]:
    """Hosts with at least three links, all of them bad; and the bad links of none of these, in order."""
    links: dict[str, list[Link]] = {}
    for link in measured:
        for host in link:
            links.setdefault(host, []).append(link)
    culprits = [host for host, its_links in links.items() if len(its_links) > 2 and bad.issuperset(its_links)]
    return culprits, sorted(link for link in bad if not {*link} & {*culprits})


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
        # A host that no other reaches is one problem, not one per pair; silence is the least informative of its failures.
        by_all = len(failed) == len(asked) > 1
        shown = dict([min(failed.items(), key=lambda one: one[1]["kind"] == "timeout")]) if by_all else failed
        for caller, pair in shown.items():
            port = pair.get("port", host["port"])
            variable = "worker_port" if port == host["port"] else "worker_direct_port"
            words = {"here": caller, "there": name, "port": port, "address": host["address"], "variable": variable}
            value = f"{name} ({host['address']}:{port}) can't be reached from {'any host' if by_all else caller}: {pair['error']}"
            yield Check(FAIL, name if by_all else caller, "reach", value, "reachable", UNREACHABLE[pair["kind"]].format(**words))


def _vanishing(network: Facts) -> Iterator[Check]:
    measured = {link: pair for link, pair in each_link(network) if "mtu_trouble" in pair}
    bad = {link for link, pair in measured.items() if pair["mtu_trouble"]}
    culprits, others = _blamed(measured, bad) if len(bad) < len(measured) else ([], sorted(bad))
    limit = "all sizes pass"
    fix = "set the smallest MTU of the path on {} (sudo ip link set dev INTERFACE mtu 1400), or let ICMP through"
    for host in culprits:
        yield Check(FAIL, host, "mtu", f"on all links of {host} small packets pass and large ones are lost", limit, fix.format("all hosts"))
    for sender, receiver in others:
        value = f"to {receiver} small packets pass and large ones are lost (MTU here {measured[sender, receiver].get('mtu', '?')})"
        yield Check(FAIL, sender, "mtu", value, limit, fix.format(f"{sender} and {receiver}"))


def _lost(network: Facts) -> Iterator[Check]:
    for (sender, receiver), pair in each_link(network):
        if pair["reachable"] and "error" in pair:
            fix = f"run the doctor again; if it stays, look at the cables between {sender} and {receiver}, if there are any"
            yield Check(WARN, sender, "network", f"to {receiver}: {pair['error']}", fix=fix)


def _clocks(network: Facts) -> Iterator[Check]:
    """Offsets between the hosts' clocks, from their echoes, which are more precise than the control node's readings."""
    for host, results in network.items():
        ahead = [-pair["clock_s"] for pair in results["pairs"].values() if "clock_s" in pair]
        certain = statistics.median(ahead) if len(ahead) > 1 else 0.0
        if abs(certain) > CLOCK_WARN_S:
            value = f"{span(abs(certain))} {'ahead of' if certain > 0 else 'behind'} the other hosts"
            yield Check(WARN, host, "clock", value, f"{CLOCK_WARN_S:.0f} s", set_clock(host))


def _mtus(network: Facts) -> Iterator[Check]:
    mtus = {host: [pair["mtu"] for pair in results["pairs"].values() if "mtu" in pair] for host, results in network.items()}
    largest = {host: max(values) for host, values in mtus.items() if values}
    for host, usual in odd(largest):
        value = f"{largest[host]}, the others {usual}"
        fix = on(host, f"sudo ip link set dev INTERFACE mtu {usual}, and the same on the switch")
        yield Check(WARN, host, "mtu", value, str(usual), fix)


def _slow_links(network: Facts, scale: Scale, facts: Facts) -> Iterator[Check]:
    """Links that are much worse than good ones; a host whose links are all bad is the cause, and is named once."""

    def finding(host: str, value: str, *names: str) -> Check:
        rule = f"at {'least' if scale.more_is_better else 'most'} {scale.show(limit)}"
        return Check(WARN, host, scale.name, value, rule, scale.advise([*names], network, facts))

    values = {link: pair[scale.key] for link, pair in each_link(network) if pair.get(scale.key) is not None}
    if not values:
        return
    good = scale.good(values.values())
    limit = scale.limit(good)
    bad = {link for link, value in values.items() if (value < limit if scale.more_is_better else value > limit)}
    if len(bad) == len(values) > 2:
        yield finding("all", f"every link is slow (median {scale.show(statistics.median(values.values()))})")
        return
    culprits, others = _blamed(values, bad)
    for host in culprits:
        own = scale.show(statistics.median(value for link, value in values.items() if host in link))
        yield finding(host, f"all links of {host} are slow: {own}, good ones {scale.show(good)}", host)
    for sender, receiver in others:
        value = f"to {receiver} {scale.show(values[sender, receiver])}, good links {scale.show(good)}"
        yield finding(sender, value, sender, receiver)


def _slow_ring(network: Facts) -> Iterator[Check]:
    """Links that are fast alone and slow when all hosts send at once, as in training."""
    fix = "a switch, an uplink or a processor is shared: give every host its own port on one switch"
    for host, results in network.items():
        ring = results.get("ring") or {}
        alone = results["pairs"].get(ring.get("to"), {}).get("mbit_s")
        if alone and ring["mbit_s"] < SLOW_LINK_SHARE * alone:
            value = f"{BANDWIDTH.show(ring['mbit_s'])} to {ring['to']} while all send at once, {BANDWIDTH.show(alone)} alone"
            yield Check(WARN, host, "ring", value, f"at least {BANDWIDTH.show(SLOW_LINK_SHARE * alone)}", fix)


def _summary(network: Facts, troubled: set[str]) -> Iterator[Check]:
    for host, results in network.items():
        pairs = list(results["pairs"].values())
        if host not in troubled and pairs:
            parts = [f"reaches {sum(pair['reachable'] for pair in pairs)} of {len(pairs)} others"]
            for scale in (DELAY, BANDWIDTH):
                values = [pair[scale.key] for pair in pairs if pair.get(scale.key) is not None]
                parts += [scale.show(statistics.median(values))] if values else []
            yield Check(OK, host, "network", ", ".join(parts))
