"""All checks of a cluster."""

from dataclasses import replace

from control.doctor.checks.across import across
from control.doctor.checks.addresses import addresses
from control.doctor.checks.host import of_host
from control.doctor.checks.model import OK, WARN, Check, Facts, Hosts, Requirement, Subject, answered
from control.doctor.checks.network import between
from control.doctor.checks.shared_folder import SILENT
from control.doctor.checks.ssh_errors import ssh


def examine(hosts: Hosts, facts: Facts, network: Facts | None, need: Requirement) -> list[Check]:
    """All checks, host by host in the order of the inventory, then those between hosts.

    Args:
        hosts: `name`, `address`, `port`; for the fixes also `ssh` (address for SSH), `user`, `ssh_port`.
        facts: results of `host_probe` by host, with `before` and `after`.
        network: results of `network_probe` by host; None if it was not run.
        need: the run's requirements.
    """
    reached = answered(facts)
    checks: list[Check] = []
    for host in hosts:
        name = host["name"]
        if name not in reached:
            checks.append(ssh(host, facts.get(name, {}).get("unreachable", "was not probed")))
            continue
        checks.append(Check(OK, name, "ssh", f"reachable as {reached[name].get('user', '?')}"))
        checks += of_host(Subject(host, reached[name], need))
    checks += [*across(hosts, reached, need), *addresses(hosts, reached, network or {})]
    if network is not None:
        checks += _new(checks, between(hosts, answered(network), reached))
    checks = _explained(checks, [host["name"] for host in hosts if host["name"] not in reached])
    order = {host["name"]: rank for rank, host in enumerate(hosts)}
    return sorted(checks, key=lambda check: order.get(check.host, len(order)))


def _explained(checks: list[Check], lost: list[str]) -> list[Check]:
    """A shared folder that does not answer while a host is down waits for that host: it is not a fault of its own."""
    if not lost:
        return checks
    fix = f"GlusterFS waits up to 42 s for {', '.join(lost)}; look again once that is fixed"
    return [replace(check, level=WARN, fix=fix) if check.name == "dfs" and SILENT in check.value else check for check in checks]


def _new(earlier: list[Check], later: list[Check]) -> list[Check]:
    """Findings not yet reported: both the control node and the other hosts notice a wrong clock."""
    hosts = {check.host for check in earlier if check.name == "clock" and check.level != OK}
    return [check for check in later if not (check.name == "clock" and check.host in hosts)]
