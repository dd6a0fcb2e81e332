"""Base class of all actions."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleFilterError
from ansible.executor.task_executor import TaskExecutor
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import action_loader
from ansible.template import Templar, trust_as_template

from control.common import command_line
from control.common.progress_line import Line
from control.common.project import ROOT
from control.common.terminal_lines import printable_lines, wrapped
from control.remote import modules
from control.remote.worker_access import Seen, Worker

# Most tasks need it, and NumPy with it; each has a process of its own, forked from the one that imports this file.
from control.runs.results import run_folder  # noqa: F401
from plugins.shared import guard_answers
from trainer.common.errors import LockstepError
from trainer.common.files import full, keep_others_out, shortage
from trainer.common.plain_values import to_plain
from trainer.rundir.full_disk import FIX

START_SCRIPT = ROOT / "templates" / "run_worker.sh.j2"

# Ansible's main process loads the first task's action, which is one of this project's, and forks the processes of all tasks.
guard_answers.guard_ansible()


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Turn a refusal by us or by a filter into a failed task with only its message."""
    try:
        yield
    except (LockstepError, AnsibleFilterError) as error:
        raise AnsibleActionFail(str(error)) from None
    except OSError as error:
        if not full(error):
            raise
        raise AnsibleActionFail(f"{shortage(Path(error.filename or ROOT), error)} on this machine. {FIX}") from None


class Action(ActionBase):
    """An action of this project: `act` takes the task's arguments by name, and returns its result, of plain values or dataclasses."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Act; a refusal fails the task with only its message."""
        result = super().run(tmp, task_vars)
        self.task_vars = task_vars or {}
        self.close_to_others()
        with refusing():
            return {**result, **to_plain(self.act(**self._task.args))}

    def close_to_others(self) -> None:
        """Keep other users of this machine from what this task's process writes: each task has a process of its own."""
        keep_others_out()

    def act(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        """Do it."""
        raise NotImplementedError

    def show(self, text: str) -> None:
        """Show a text before the task's end."""
        self._display.display(wrapped(printable_lines(text), command_line.columns()))

    def start_script(self, name: str, folder: str, arguments: Sequence[object], **variables: Any) -> str:
        """`run_worker.sh` of a job.

        Args:
            name: what it is, in its first comment.
            folder: its own folder on the host.
            arguments: those of the host's Python, which runs the published trainer.
            variables: more variables, in place of the task's.
        """
        job = {"job_name": name, "job_folder": folder, "job_arguments": list(arguments)}
        return str(self._templar_with(job | variables).template(trust_as_template(START_SCRIPT.read_text(encoding="utf-8"))))

    def evaluate(self, expression: str, **variables: Any) -> Any:
        """Value of an expression of the task's variables, and of more `variables`."""
        return self._templar_with(variables).evaluate_expression(trust_as_template(expression))

    def _templar_with(self, variables: dict[str, Any]) -> Templar:
        return self._templar.copy_with_new_env(available_variables=self.task_vars | variables)

    def for_host(self, name: str) -> ActionBase:
        """An action on another host of the inventory, over a connection of its own; it connects once it does something there."""
        hostvars = self.task_vars["hostvars"]
        manager, host, task = hostvars._variable_manager, hostvars._inventory.get_host(name), self._task
        variables = manager.get_vars(play=task.play, host=host, task=task)
        templar = Templar(loader=self._loader, variables=variables)
        context = self._play_context.set_task_and_variable_override(task=task, variables=variables, templar=templar)
        context.remote_addr = variables.get("ansible_host", name)
        executor = TaskExecutor(host, task, variables, context, self._loader, self._shared_loader_obj, None, manager)
        kind = variables.get("ansible_connection")
        executor._connection = executor._get_connection(variables, templar, templar.template(kind) if kind else task.connection)
        executor._set_connection_options(variables, templar)
        shared = {"play_context": context, "loader": self._loader, "templar": templar, "shared_loader_obj": self._shared_loader_obj}
        made: Any = action_loader.get("normal", task=task, connection=executor._connection, **shared)
        made.task_vars = variables
        return made

    def run_session(self, worker: Worker, shown: Callable[[dict[str, Any]], str], check: Callable[[], None] = lambda: None) -> Seen:
        """Run `run_worker.sh` in a worker's tmux session to its end, its phases on a progress line, if any; see `Worker.follow`."""
        start = {"name": worker.session, "argv": ["bash", "run_worker.sh"], "chdir": worker.folder}
        modules.require(self, "tmux_session", start)
        line = Line()

        def show(record: dict[str, Any]) -> None:
            if record["kind"] == "phase" and (words := shown(record)):
                line.update(words)

        try:
            return worker.follow(show, check)
        finally:
            line.end()
