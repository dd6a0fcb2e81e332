"""All checks of a cluster."""

from dataclasses import replace

from trainer.analysis.checks.across import across
from trainer.analysis.checks.addresses import addresses
from trainer.analysis.checks.host import of_host
from trainer.analysis.checks.model import OK, WARN, Check, Facts, Hosts, Requirement
from trainer.analysis.checks.network import between
from trainer.analysis.checks.shared_folder import SILENT
from trainer.analysis.checks.ssh_errors import ssh


def examine(hosts: Hosts, facts: Facts, network: Facts | None, need: Requirement) -> list[Check]:
    """All checks, host by host in the order of the inventory, then what lies between them.

    Args:
        hosts: `name`, `address`, `port`; for the mends also `ssh` (address for SSH), `user`, `ssh_port`.
        facts: results of `host_probe` by host, with `before` and `after`.
        network: results of `network_probe` by host; None when it was not run.
        need: what the run needs.
    """
    seen = {name: found for name, found in facts.items() if "unreachable" not in found}
    checks: list[Check] = []
    for host in hosts:
        name = host["name"]
        if name not in seen:
            checks.append(ssh(host, facts.get(name, {}).get("unreachable", "was not asked")))
            continue
        checks.append(Check(OK, name, "ssh", f"reachable as {seen[name].get('user', '?')}"))
        checks += of_host(host, seen[name], need)
    checks += [*across(hosts, seen, need), *addresses(hosts, seen, network or {})]
    if network is not None:
        checks += _new(checks, between(hosts, {name: found for name, found in network.items() if "unreachable" not in found}))
    checks = _explained(checks, [host["name"] for host in hosts if host["name"] not in seen])
    order = {host["name"]: rank for rank, host in enumerate(hosts)}
    return sorted(checks, key=lambda check: order.get(check.host, len(order)))


def _explained(checks: list[Check], lost: list[str]) -> list[Check]:
    """A shared folder that does not answer while a host is away waits for that host: no fault of its own."""
    if not lost:
        return checks
    mend = f"GlusterFS waits up to 42 s for {', '.join(lost)}; look again once that is mended"
    return [replace(check, level=WARN, mend=mend) if check.name == "dfs" and SILENT in check.value else check for check in checks]


def _new(known: list[Check], more: list[Check]) -> list[Check]:
    """What is not told twice: a wrong clock is seen by the control node and by the other hosts."""
    told = {check.host for check in known if check.name == "clock" and check.level != OK}
    return [check for check in more if not (check.name == "clock" and check.host in told)]
