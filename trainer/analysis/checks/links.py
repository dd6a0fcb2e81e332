"""How fast the links between hosts are, each judged by the good ones."""

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from trainer.analysis.checks.model import WARN, Check, Facts

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
    advice: str

    def limit(self, good: float) -> float:
        """What a link must keep, where good links have `good`."""
        return max(SLOW_LINK_SHARE * good, SLOW_LINK_MBIT_S) if self.more_is_better else max(3 * good, LONG_RTT_MS)

    def good(self, values: Iterable[float]) -> float:
        """A good link's value: only a fifth of all are better. The median is bad where one of three hosts is."""
        ranked = sorted(values, reverse=not self.more_is_better)
        return ranked[round(0.8 * (len(ranked) - 1))]

    def show(self, value: float) -> str:
        """The value with its unit."""
        return f"{value:,.{self.decimals}f} {self.unit}"


DELAY = Scale("rtt_ms", "delay", "ms", 1, False, "connect {} by cable to the others' switch")
BANDWIDTH = Scale("mbit_s", "bandwidth", "Mbit/s", 0, True, "look at the cable and switch port of {}: sudo ethtool INTERFACE | grep Speed")


def each_pair(network: Facts) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Host, other host, and what was measured from the one to the other."""
    for here, found in network.items():
        for there, pair in found["pairs"].items():
            yield here, there, pair


def slow_links(network: Facts, scale: Scale) -> Iterator[Check]:
    """Links that are much worse than good ones; a host whose links are all bad is the culprit, and named once."""
    known = {(here, there): pair[scale.key] for here, there, pair in each_pair(network) if pair.get(scale.key) is not None}
    if not known:
        return
    good = scale.good(known.values())
    limit = scale.limit(good)
    bad = {pair for pair, value in known.items() if (value < limit if scale.more_is_better else value > limit)}
    rule = f"at {'least' if scale.more_is_better else 'most'} {scale.show(limit)}"
    if len(bad) == len(known) > 2:
        middle = scale.show(statistics.median(known.values()))
        yield Check(WARN, "all", scale.name, f"every link is slow (median {middle})", rule, scale.advice.format("every host"))
        return
    for host in culprits(known, bad):
        own = scale.show(statistics.median(value for pair, value in known.items() if host in pair))
        bad = {pair for pair in bad if host not in pair}
        yield Check(
            WARN, host, scale.name, f"all links of {host} are slow: {own}, good ones {scale.show(good)}", rule, scale.advice.format(host)
        )
    for here, there in sorted(bad):
        value = f"to {there} {scale.show(known[here, there])}, good links {scale.show(good)}"
        yield Check(WARN, here, scale.name, value, rule, scale.advice.format(f"{here} and {there}"))


def culprits(known: Iterable[tuple[str, str]], bad: set[tuple[str, str]]) -> list[str]:
    """Hosts with three links or more of which every one is bad."""
    links: dict[str, list[tuple[str, str]]] = {}
    for pair in known:
        for host in pair:
            links.setdefault(host, []).append(pair)
    return [host for host, pairs in links.items() if len(pairs) > 2 and bad.issuperset(pairs)]


def slow_ring(network: Facts) -> Iterator[Check]:
    """Links that are fast alone and slow when all hosts send at once, as they do in training."""
    for here, found in network.items():
        ring = found.get("ring") or {}
        alone = found["pairs"].get(ring.get("to"), {}).get("mbit_s")
        if alone and ring["mbit_s"] < SLOW_LINK_SHARE * alone:
            value = f"{BANDWIDTH.show(ring['mbit_s'])} to {ring['to']} while all send at once, {BANDWIDTH.show(alone)} alone"
            limit = f"at least {BANDWIDTH.show(SLOW_LINK_SHARE * alone)}"
            yield Check(
                WARN, here, "ring", value, limit, "a switch, an uplink or a processor is shared: give every host its own port on one switch"
            )
