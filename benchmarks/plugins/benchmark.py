"""The action for a benchmark's tasks without a host: `benchmark: {do: run_peers}` runs a function of `benchmarks/tasks/run_peers.py`."""

from collections.abc import Callable
from typing import Any

from control.common.task import Task
from plugins.action import control


class ActionModule(control.ActionModule):
    """Runs one `Task`."""

    def function(self, name: str) -> Callable[[Task], dict[str, Any]]:
        """The function that `do` names: `peer_hosts.judge`, or `run_peers` for `run_peers.run_peers`."""
        return control.task_in("benchmarks.tasks", name)
