"""Filters of playbooks and templates: registered here, implemented in `control/`."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from control.common import project, worker_environment
from control.lab import lab_inventory
from control.provision import host_rules
from control.remote import checked_code
from control.runs.hosts import inventory_hosts
from control.runs.launch import launches, preload
from trainer.common.plain_values import from_plain, to_plain
from trainer.host import claims
from trainer.rundir.launch_record import Host


class FilterModule:
    """Filters for playbooks and templates."""

    def filters(self) -> dict[str, Any]:
        """Name to function."""
        return {
            "by_host": _by_host,
            "cluster_hosts": lambda hostvars, names: to_plain(inventory_hosts.cluster_hosts(hostvars, names)),
            "cluster_rank": inventory_hosts.rank,
            "gpu_share": lambda hosts, name: inventory_hosts.gpu_share([from_plain(Host, host) for host in hosts], name),
            "reached_hosts": inventory_hosts.reached_hosts,
            "session_name": claims.session_name,
            "environment_exports": worker_environment.exports,
            "unless_in": lambda stage, left_out: ":!all" if stage in left_out else "",
            "fork_server_key": preload.key,
            "checked_code": _checked_code_line,
            "launched_at": launches.launched_at,
            "dfs_trusted": host_rules.dfs_trusted,
            "firewall_rules": host_rules.firewall_rules,
            "lab_failures": lab_inventory.failures,
            "in_project": project.inside,
        }


def _by_host(hostvars: Mapping[str, Any], variable: str, names: Sequence[str]) -> dict[str, Any]:
    """A variable, such as a registered result, of the named hosts; `{}` for a host that has none."""
    return {name: hostvars[name].get(variable, {}) for name in names}


def _checked_code_line(program: dict[str, str], arguments: Sequence[object]) -> str:
    """A line of a shell script that runs `program` (`python`, `code`, `sha256`, `caches`), as `checked_code.command` says."""
    return shlex.join(checked_code.command(**program, arguments=arguments))
