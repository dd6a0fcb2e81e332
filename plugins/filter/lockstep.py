"""Filters of playbooks and templates: registered here, implemented in `control/`.

Every process of a task that evaluates an expression loads this file, so it imports what a filter needs when that is called.
"""

import pkgutil
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

FUNCTIONS = {
    "cluster_rank": "control.runs.hosts.inventory_hosts:rank",
    "reached_hosts": "control.runs.hosts.inventory_hosts:reached_hosts",
    "session_name": "trainer.host.claims:session_name",
    "environment_exports": "control.common.worker_environment:exports",
    "fork_server_key": "control.runs.launch.preload:key",
    "launched_at": "control.runs.launch.launches:launched_at",
    "dfs_trusted": "control.provision.host_rules:dfs_trusted",
    "firewall_rules": "control.provision.host_rules:firewall_rules",
    "lab_failures": "control.lab.lab_inventory:failures",
    "in_project": "control.common.project:inside",
}
"""Filters that are functions elsewhere, by name."""


class FilterModule:
    """Filters for playbooks and templates."""

    def filters(self) -> dict[str, Any]:
        """Name to function."""
        own = {
            "by_host": _by_host,
            "checked_code": _checked_code_line,
            "cluster_hosts": _cluster_hosts,
            "gpu_share": _gpu_share,
            "unless_in": _unless_in,
        }
        return own | {name: _late(place) for name, place in FUNCTIONS.items()}


def _late(place: str) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        return pkgutil.resolve_name(place)(*arguments)

    return call


def _by_host(hostvars: Mapping[str, Any], variable: str, names: Sequence[str]) -> dict[str, Any]:
    """A variable, such as a registered result, of the named hosts; `{}` for a host that has none."""
    return {name: hostvars[name].get(variable, {}) for name in names}


def _checked_code_line(program: dict[str, str], arguments: Sequence[object]) -> str:
    """A line of a shell script that runs `program` (`python`, `code`, `sha256`, `caches`), as `checked_code.command` says."""
    from control.remote import checked_code

    return shlex.join(checked_code.command(**program, arguments=arguments))


def _cluster_hosts(hostvars: Any, names: list[str]) -> Any:
    from control.runs.hosts import inventory_hosts
    from trainer.common.plain_values import to_plain

    return to_plain(inventory_hosts.cluster_hosts(hostvars, names))


def _gpu_share(hosts: Sequence[Mapping[str, Any]], name: str) -> str:
    from control.runs.hosts import inventory_hosts
    from trainer.common.plain_values import from_plain
    from trainer.rundir.launch_record import Host

    return inventory_hosts.gpu_share([from_plain(Host, host) for host in hosts], name)


def _unless_in(stage: str, left_out: Sequence[str]) -> str:
    """The rest of a pattern of hosts: all of them, or none if the stage is left out."""
    return ":!all" if stage in left_out else ""
