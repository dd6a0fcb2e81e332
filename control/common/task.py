"""Tasks that playbooks run on the control node: one function per task, `control: {do: runs.plan, ...}`.

`runs.plan` is the function `plan` in `control/runs/tasks/plan.py`, `runs.prediction.write` is `write` in `prediction.py` beside it. Such
a function takes a `Task`, and returns the result of an Ansible task: `changed`, `ansible_facts`, and `show`, a text for the user.
Dataclasses in it become plain values. A LockstepError fails the task, and is shown without a traceback.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ansible.utils.display import Display

from control.common.plan import Plan
from trainer.common.plain_values import from_plain
from trainer.rundir.launch_record import Host


@dataclass
class Task:
    """Input of a task."""

    arguments: dict[str, Any]
    """The task's arguments in the playbook, without `do`."""
    task_vars: dict[str, Any] = field(default_factory=dict)
    """Ansible's variables."""
    check_mode: bool = False
    """With `--check`, nothing is changed."""
    template: Callable[[Any], Any] = lambda value: value
    """Ansible's templating, for values in `task_vars`."""
    on: Callable[[str], Any] = lambda _: None
    """An action on a host of the inventory, over a connection of its own."""

    @property
    def plan(self) -> Plan:
        """The task's argument `plan`."""
        return from_plain(Plan, self.arguments["plan"])

    @property
    def hosts(self) -> list[Host]:
        """The task's argument `hosts`."""
        return [from_plain(Host, host) for host in self.arguments["hosts"]]

    def warn(self, complaints: Iterable[str]) -> None:
        """Show warnings; empty ones are left out."""
        for complaint in filter(None, complaints):
            Display().warning(complaint)
