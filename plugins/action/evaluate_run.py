"""Evaluate snapshots on the chief in a tmux session, with progress; record and show the results."""

import shlex
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from control import command_line, project
from control.progress import Line
from control.remote import lean
from control.remote.remote import HostUnreachable, Worker
from control.runs import evaluations
from trainer import rundir
from trainer.errors import DONE
from trainer.records import evaluation


class ActionModule(ActionBase):
    """Appends to evaluations.csv and draws a confusion matrix for each epoch."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Start, follow, collect, record."""
        result = super().run(tmp, task_vars)
        arguments = self._task.args
        local, epochs = Path(arguments["local"]), arguments["epochs"]
        try:
            self._evaluate(arguments, task_vars).collect(local, "evaluate")
        except HostUnreachable as error:
            raise AnsibleActionFail(f"the chief can't be reached: {error}") from None
        evaluated = [_read(local / "evaluate" / f"epoch-{epoch:04d}.json") for epoch in epochs]
        pictures = [project.relative(evaluations.picture(local, row)) for row in evaluated]
        evaluations.append(local / "evaluations.csv", evaluated)
        result["changed"] = True
        result["show_last"] = evaluations.show(arguments["run"], evaluated, pictures, rundir.marks(local))
        return result

    def _evaluate(self, arguments: dict[str, Any], task_vars: Any) -> Worker:
        session = {"name": arguments["session"], "argv": ["bash", "run_worker.sh"], "chdir": arguments["folder"]}
        worker = Worker(self, arguments["run_folder"], arguments["folder"], arguments["session"])
        folder = shlex.quote(arguments["folder"])
        lean.execute(self, "tmux_session", {"name": arguments["session"], "state": "absent", "grace": 2}, task_vars or {})
        self._low_level_execute_command(f"cd {folder} && rm -f exit.json metrics.jsonl epoch-*.json", sudoable=False)
        lean.require(self, "tmux_session", session, task_vars or {})
        line = Line(Display(), command_line.terminal())

        def show(record: dict[str, Any]) -> None:
            if record["kind"] == "phase":
                line.update(f"{record['phase']} {record['note']}".rstrip())

        seen = worker.follow(show)
        line.end()
        if seen.exit is None or seen.exit["exit_code"] != DONE:
            last = "\n  ".join(worker.last_lines())
            raise AnsibleActionFail(f"evaluation failed on {arguments['run']}'s chief; the last lines of its log:\n  {last}")
        return worker


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise AnsibleActionFail(f"the chief gave no {path.name} that can be read; run the command again, and see its log")
    return evaluation(path.read_text(encoding="utf-8"))
