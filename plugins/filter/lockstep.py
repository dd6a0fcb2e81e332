"""Filters of playbooks and templates: registered here, implemented in `control/`."""

from typing import Any

from control import project, worker_environment
from control.lab import lab
from control.provision import provision
from control.remote import checked_code
from control.runs import cluster, launches, queue, script, supervision


class FilterModule:
    """Filters for playbooks and templates."""

    def filters(self) -> dict[str, Any]:
        """Name to function."""
        return {
            "cluster_hosts": cluster.cluster_hosts,
            "cluster_rank": cluster.rank,
            "posts": cluster.posts,
            "thread_share": cluster.thread_share,
            "gpu_share": cluster.gpu_share,
            "reached_hosts": cluster.reached_hosts,
            "session_name": cluster.session_name,
            "environment_exports": worker_environment.exports,
            "script_command": script.command,
            "supervised_command": supervision.command,
            "queued_command": queue.command,
            "checked_code": checked_code.command,
            "launched_at": launches.launched_at,
            "dfs_trusted": provision.dfs_trusted,
            "firewall_rules": provision.firewall_rules,
            "lab_failures": lab.failures,
            "in_project": project.inside,
        }
