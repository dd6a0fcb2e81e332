"""Clocks: each host against the control node, and hosts against each other."""

import statistics
from collections.abc import Iterator
from typing import Any

from control.doctor.checks.model import FAIL, OK, WARN, Check, Facts, Subject, on

# The order of failures on several hosts comes from the times that they wrote down.
CLOCK_WARN_S = 1.0
# Beyond the silence (45 s) after which a worker counts as lost; certificates and package lists soon fail,
# too.
CLOCK_FAIL_S = 60.0


def skew(facts: dict[str, Any]) -> tuple[float, float] | None:
    """Seconds by which a host's clock is ahead of the control node's, and the uncertainty.

    The host read its clock at the end of a probe of `seconds`, between `before` + `seconds` and `after`.
    """
    if "before" not in facts or "after" not in facts:
        return None
    first, last = facts["before"] + facts.get("seconds", 0.0), facts["after"]
    return facts["time"] - (first + last) / 2, max(0.0, last - first) / 2


def clock(subject: Subject) -> Iterator[Check]:
    """A host's clock against the control node's; only the offset beyond the uncertainty counts."""
    offset = skew(subject.facts)
    if offset is not None:
        ahead, blur = offset
        certain = max(0.0, abs(ahead) - blur)
        level = FAIL if certain > CLOCK_FAIL_S else WARN if certain > CLOCK_WARN_S else OK
        value = f"{_span(abs(ahead))} {'ahead' if ahead > 0 else 'behind'}" if level != OK else f"correct within {abs(ahead) + blur:.1f} s"
        yield subject.check(level, "clock", value, f"{CLOCK_WARN_S:.0f} s", _set_clock(subject.host["name"]))


def clocks(network: Facts) -> Iterator[Check]:
    """Clocks of the hosts against each other, from the echoes: more precise than the control node's view."""
    for host, results in network.items():
        ahead = [-pair["clock_s"] for pair in results["pairs"].values() if "clock_s" in pair]
        certain = statistics.median(ahead) if len(ahead) > 1 else 0.0
        if abs(certain) > CLOCK_WARN_S:
            value = f"{_span(abs(certain))} {'ahead of' if certain > 0 else 'behind'} the other hosts"
            yield Check(WARN, host, "clock", value, f"{CLOCK_WARN_S:.0f} s", _set_clock(host))


def _set_clock(host: str) -> str:
    return on(host, "sudo timedatectl set-ntp true")


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{seconds:.1f} s" if seconds < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} h"
