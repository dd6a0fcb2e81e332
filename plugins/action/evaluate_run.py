"""Evaluate snapshots on the chief in a tmux session, with progress; record and show the results."""

import shlex
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from plugins.shared import control, lean
from plugins.shared.remote import Gone, Worker
from trainer.analysis import evaluations
from trainer.analysis.progress import Line
from trainer.files import read_json


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
        except Gone as error:
            raise AnsibleActionFail(f"the chief can't be reached: {error}") from None
        found = [read_json(local / "evaluate" / f"epoch-{epoch:04d}.json") for epoch in epochs]
        pictures = [evaluations.picture(local, row) for row in found]
        evaluations.append(local / "evaluations.csv", found)
        result["changed"] = True
        result["show_last"] = evaluations.show(arguments["run"], found, [control.relative(path) for path in pictures])
        return result

    def _evaluate(self, arguments: dict[str, Any], task_vars: Any) -> Worker:
        session = {"name": arguments["session"], "argv": ["bash", "run_worker.sh"], "chdir": arguments["folder"]}
        worker = Worker(self, arguments["run_folder"], arguments["folder"], arguments["session"])
        folder = shlex.quote(arguments["folder"])
        lean.execute(self, "tmux_session", {"name": arguments["session"], "state": "absent", "grace": 2}, task_vars or {})
        self._low_level_execute_command(f"cd {folder} && rm -f exit.json metrics.jsonl epoch-*.json", sudoable=False)
        started = lean.execute(self, "tmux_session", session, task_vars or {})
        if started.get("failed"):
            raise AnsibleActionFail(started["msg"])
        line = Line(Display(), control.terminal())
        while True:
            seen = worker.look()
            for record in seen.records:
                line.update(f"{record['phase']} {record.get('note', '')}".rstrip())
            if seen.exit is not None or not seen.alive:
                break
            time.sleep(0.5)
        line.end()
        if seen.exit is None or seen.exit["exit_code"] != 0:
            last = "\n  ".join(worker.last_lines())
            raise AnsibleActionFail(f"evaluation failed on {arguments['run']}'s chief; the last lines of its log:\n  {last}")
        return worker
