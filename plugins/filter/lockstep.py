"""Filters of playbooks and templates: registered here, implemented in `control/`."""

from typing import Any

from control.common import host_names, project, worker_environment
from control.lab import lab_inventory
from control.provision import host_rules
from control.remote import checked_code
from control.runs.hosts import inventory_hosts, supervisor_command
from control.runs.launch import launches, waiting_runs
from control.runs.planning import script_plan


class FilterModule:
    """Filters for playbooks and templates."""

    def filters(self) -> dict[str, Any]:
        """Name to function."""
        return {
            "cluster_hosts": inventory_hosts.cluster_hosts,
            "cluster_rank": inventory_hosts.rank,
            "posts": inventory_hosts.posts,
            "thread_share": inventory_hosts.thread_share,
            "gpu_share": inventory_hosts.gpu_share,
            "reached_hosts": inventory_hosts.reached_hosts,
            "session_name": host_names.session_name,
            "environment_exports": worker_environment.exports,
            "script_command": script_plan.command,
            "supervised_command": supervisor_command.command,
            "queued_command": waiting_runs.command,
            "checked_code": checked_code.command,
            "launched_at": launches.launched_at,
            "dfs_trusted": host_rules.dfs_trusted,
            "firewall_rules": host_rules.firewall_rules,
            "lab_failures": lab_inventory.failures,
            "in_project": project.inside,
        }
