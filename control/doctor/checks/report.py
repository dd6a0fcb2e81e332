"""The checks as text for users and JSON for programs."""

import re
from collections import Counter
from dataclasses import asdict, replace
from typing import Any

from control.common.text import count
from control.doctor.checks.model import FAIL, OK, WARN, Check, Facts, answered, on
from control.doctor.checks.network import BANDWIDTH, DELAY, Scale, each_link

NUMBERED = re.compile(r"(.*?)([0-9]+)([^0-9]*)")
SHOWN_HOSTS = 3


def render(checks: list[Check], verbose: bool = False) -> str:
    """Text with one line per check (or only checks that are not OK), where hosts with the same problem share a line; then the counts."""
    shown = checks if verbose else _together([check for check in checks if check.level != OK])
    hosts = max((len(check.host) for check in shown), default=0)
    names = max((len(check.name) for check in shown), default=0)
    return "\n".join([*(_line(check, hosts, names) for check in shown), _summary(checks)])


def _together(checks: list[Check]) -> list[Check]:
    """One check for several hosts whose checks are otherwise identical."""
    groups: dict[Check, list[Check]] = {}
    for check in checks:
        own, each = on(check.host, ""), on("each", "")
        shared = replace(check, host="", value=check.value.replace(own, each), fix=check.fix.replace(own, each))
        groups.setdefault(shared, []).append(check)
    hosts = {shared: list(dict.fromkeys(check.host for check in alike)) for shared, alike in groups.items()}
    return [replace(shared, host=_names(hosts[shared])) if len(hosts[shared]) > 1 else alike[-1] for shared, alike in groups.items()]


def _names(hosts: list[str]) -> str:
    """`node1-node5` for names, in any order, with consecutive numbers, else at most three names: `node1, node3 and 2 more`."""
    parts = [match.groups() for match in map(NUMBERED.fullmatch, hosts) if match]
    if 2 < len(hosts) == len(parts):
        before, number, after = min(parts, key=lambda part: int(part[1]))
        run = [f"{before}{int(number) + step:0{len(number)}d}{after}" for step in range(len(hosts))]
        if set(run) == set(hosts):
            return f"{run[0]}-{run[-1]}"
    return ", ".join(hosts) if len(hosts) <= SHOWN_HOSTS else f"{hosts[0]}, {hosts[1]} and {len(hosts) - 2} more"


def _line(check: Check, hosts: int, names: int) -> str:
    limit = f" (limit: {check.limit})" if check.limit and check.level != OK else ""
    fix = f". Fix: {check.fix}" if check.fix else ""
    return f"{f'[{check.level}]':<6} {check.host:<{hosts}}  {check.name:<{names}}  {check.value}{limit}{fix}"


def _summary(checks: list[Check]) -> str:
    """The number of checks per level."""
    levels = Counter(check.level for check in checks)
    hosts = count(len({check.host for check in checks} - {"all"}), "host")
    verdict = "can't train" if levels[FAIL] else "can train"
    numbers = ", ".join(f"{levels[level]} {level}" for level in (OK, WARN, FAIL))
    return f"{hosts}, {count(len(checks), 'check')}: {numbers}; this cluster {verdict}"


def matrix(network: Facts) -> str:
    """Tables of delay and bandwidth from each host (rows) to each (columns); `!` is unreachable, `?` unknown."""
    measured = answered(network)
    scales = [scale for scale in (DELAY, BANDWIDTH) if any(pair.get(scale.key) for _, pair in each_link(measured))]
    return "\n\n".join(_table(measured, scale) for scale in scales)


def _table(network: Facts, scale: Scale) -> str:
    columns = list(dict.fromkeys([*network, *(other for (_, other), _ in each_link(network))]))
    title = f"{scale.name} ({scale.unit})"
    first, width = max(len(name) for name in [title, *columns]), max(8, *(len(name) for name in columns))
    lines = [f"{title:<{first}}" + "".join(f"  {other:>{width}}" for other in columns)]
    for host, results in network.items():
        cells = [_cell(results["pairs"].get(other), scale) if other != host else "-" for other in columns]
        lines.append(f"{host:<{first}}" + "".join(f"  {cell:>{width}}" for cell in cells))
    return "\n".join(lines)


def _cell(pair: dict[str, Any] | None, scale: Scale) -> str:
    if pair is None or (pair["reachable"] and pair.get(scale.key) is None):
        return "?"
    return f"{pair[scale.key]:,.{2 if scale is DELAY else 0}f}" if pair["reachable"] else "!"


def document(checks: list[Check], facts: Facts, network: Facts | None) -> dict[str, Any]:
    """The complete `doctor.json`; the prediction is added once it is made."""
    return {
        "ok": all(check.level != FAIL for check in checks),
        "summary": _summary(checks),
        "checks": [asdict(check) for check in checks],
        "facts": facts,
        "network": network,
        "prediction": None,
    }
