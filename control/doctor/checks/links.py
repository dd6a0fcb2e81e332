"""Speed of the links between hosts, each judged against the good ones."""

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from control.doctor.checks.model import WARN, Check, Facts
from control.text import listed

SLOW_LINK_SHARE = 0.5
SLOW_LINK_MBIT_S = 50.0
LONG_RTT_MS = 5.0


@dataclass(frozen=True)
class Scale:
    """How one measure of a link is judged."""

    key: str
    name: str
    unit: str
    decimals: int
    more_is_better: bool
    advise: Callable[[list[str], Facts, Facts], str]
    """The fix for the links of these hosts (none: of all), from the links and the hosts' own facts."""

    def limit(self, good: float) -> float:
        """The limit for a link, if good links have `good`."""
        return max(SLOW_LINK_SHARE * good, SLOW_LINK_MBIT_S) if self.more_is_better else max(3 * good, LONG_RTT_MS)

    def good(self, values: Iterable[float]) -> float:
        """A good link's value: only a fifth of the links are better. With three hosts, one bad host makes the median bad."""
        ranked = sorted(values, reverse=not self.more_is_better)
        return ranked[round(0.8 * (len(ranked) - 1))]

    def show(self, value: float) -> str:
        """The value with its unit."""
        return f"{value:,.{self.decimals}f} {self.unit}"


def _look_at_cables(names: list[str], *_: object) -> str:
    return f"look at the cable and switch port of {listed(names) or 'every host'}: sudo ethtool INTERFACE | grep Speed"


def _find_the_wait(names: list[str], network: Facts, facts: Facts) -> str:
    """Why answers are late: a busy processor, Wi-Fi, or the path."""
    involved = names or [*network]
    loads = {name: facts[name] for name in involved if facts.get(name, {}).get("load") is not None}
    busy = [name for name, load in loads.items() if load["load"] > load["cores"] / 2]
    shown = ", ".join(f"{name} (load {loads[name]['load']:.1f} on {loads[name]['cores']} cores)" for name in busy)
    begin = f"busy: {shown}; end what else runs there and run the doctor again. If it stays: " if busy else ""
    quickest = [
        pair["rtt_min_ms"] for sender, receiver, pair in each_pair(network) if "rtt_min_ms" in pair and {sender, receiver}.issuperset(names)
    ]
    far = bool(quickest) and statistics.median(quickest) > LONG_RTT_MS
    way = "a network far away, or a VPN: even the fastest answer took that long; use hosts on one switch"
    wifi = f"Wi-Fi, or a port that saves power: connect {listed(names) or 'every host'} by cable to the others' switch"
    return begin + (way if far else wifi)


DELAY = Scale("rtt_ms", "delay", "ms", 1, False, _find_the_wait)
BANDWIDTH = Scale("mbit_s", "bandwidth", "Mbit/s", 0, True, _look_at_cables)


def each_pair(network: Facts) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Host, other host, and the measurement from one to the other."""
    for host, results in network.items():
        for other, pair in results["pairs"].items():
            yield host, other, pair


def slow_links(network: Facts, scale: Scale, facts: Facts) -> Iterator[Check]:
    """Links that are much worse than good ones; a host whose links are all bad is the culprit, and named once."""

    def advice(*names: str) -> str:
        return scale.advise([*names], network, facts)

    values = {(sender, receiver): pair[scale.key] for sender, receiver, pair in each_pair(network) if pair.get(scale.key) is not None}
    if not values:
        return
    good = scale.good(values.values())
    limit = scale.limit(good)
    bad = {pair for pair, value in values.items() if (value < limit if scale.more_is_better else value > limit)}
    rule = f"at {'least' if scale.more_is_better else 'most'} {scale.show(limit)}"
    if len(bad) == len(values) > 2:
        middle = scale.show(statistics.median(values.values()))
        yield Check(WARN, "all", scale.name, f"every link is slow (median {middle})", rule, advice())
        return
    for host in culprits(values, bad):
        own = scale.show(statistics.median(value for pair, value in values.items() if host in pair))
        bad = {pair for pair in bad if host not in pair}
        yield Check(WARN, host, scale.name, f"all links of {host} are slow: {own}, good ones {scale.show(good)}", rule, advice(host))
    for sender, receiver in sorted(bad):
        value = f"to {receiver} {scale.show(values[sender, receiver])}, good links {scale.show(good)}"
        yield Check(WARN, sender, scale.name, value, rule, advice(sender, receiver))


def culprits(measured: Iterable[tuple[str, str]], bad: set[tuple[str, str]]) -> list[str]:
    """Hosts with at least three links, all of them bad."""
    links: dict[str, list[tuple[str, str]]] = {}
    for pair in measured:
        for host in pair:
            links.setdefault(host, []).append(pair)
    return [host for host, pairs in links.items() if len(pairs) > 2 and bad.issuperset(pairs)]


def slow_ring(network: Facts) -> Iterator[Check]:
    """Links that are fast alone and slow when all hosts send at once, as in training."""
    for host, results in network.items():
        ring = results.get("ring") or {}
        alone = results["pairs"].get(ring.get("to"), {}).get("mbit_s")
        if alone and ring["mbit_s"] < SLOW_LINK_SHARE * alone:
            value = f"{BANDWIDTH.show(ring['mbit_s'])} to {ring['to']} while all send at once, {BANDWIDTH.show(alone)} alone"
            limit = f"at least {BANDWIDTH.show(SLOW_LINK_SHARE * alone)}"
            yield Check(
                WARN, host, "ring", value, limit, "a switch, an uplink or a processor is shared: give every host its own port on one switch"
            )
