"""Evaluate snapshots on the chief in a tmux session, with progress; record and show the results."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from control.common import project
from control.common.child_playbooks import heeding_signals
from control.remote import modules
from control.remote.follow import HostUnreachable
from control.remote.worker_access import Worker
from control.remote.worker_files import evaluation
from control.runs.results import evaluations, run_summary, snapshot_choice
from plugins.shared.base_action import Action
from trainer.common.errors import DONE
from trainer.data.spec import noun
from trainer.rundir import layout


class ActionModule(Action):
    """Appends to evaluations.csv and draws what each epoch gets wrong."""

    def act(self, run: str, session: str, run_folder: str, folder: str, local: str, epochs: list[int]) -> dict[str, Any]:
        """Start, follow, collect, record; a command that is ended ends the evaluation."""
        into, worker = Path(local), Worker(self, run_folder, folder, session)
        with heeding_signals() as ended:
            try:
                self._evaluate(run, worker, ended)
                worker.collect(into, "evaluate")
            except HostUnreachable as error:
                raise AnsibleActionFail(f"the chief can't be reached: {error}") from None
            finally:
                if ended():
                    self._end(worker)
        evaluated = [_read(layout.record_path(into / "evaluate", epoch)) for epoch in epochs]
        pictures = [{key: project.relative(path) for key, path in evaluations.draw(into, row).items()} for row in evaluated]
        evaluations.append(into / "evaluations.csv", evaluated)
        what = f"{noun(layout.recorded(into)['dataset'].get('spec'))}s"
        over = run_summary.has_ended(run_summary.read_summary(into))
        return {"changed": True, "show_last": evaluations.show(run, evaluated, pictures, snapshot_choice.marks(into), what, over)}

    def _evaluate(self, run: str, worker: Worker, ended: Callable[[], bool]) -> None:
        def check() -> None:
            if ended():
                raise AnsibleActionFail(f"the evaluation of {run} was ended before it was done; nothing is recorded")

        self._end(worker)
        self._low_level_execute_command(f"cd {shlex.quote(worker.folder)} && rm -f exit.json metrics.jsonl epoch-*.json", sudoable=False)
        seen = self.run_session(worker, lambda record: f"{record['phase']} {record['note']}".rstrip(), check)
        if seen.exit is None or seen.exit["exit_code"] != DONE:
            last = "\n  ".join(worker.last_lines())
            raise AnsibleActionFail(f"evaluation failed on {run}'s chief; the last lines of its log:\n  {last}")

    def _end(self, worker: Worker) -> None:
        modules.execute(self, "tmux_session", {"name": worker.session, "state": "absent", "grace": 2})


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise AnsibleActionFail(f"the chief gave no {path.name} that can be read; run the command again, and see its log")
    return evaluation(path.read_text(encoding="utf-8"))
