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
from control.remote.published import Published
from control.remote.shared_folder import Item, SharedFolder
from control.remote.worker_access import Worker
from control.remote.worker_files import evaluation
from control.runs.results import evaluations
from control.runs.results.run_folder import RunFolder, ranges
from plugins.action.distribute import distribute
from plugins.shared.base_action import Action
from trainer.common.errors import DONE
from trainer.common.plain_values import to_plain
from trainer.rundir import layout


class ActionModule(Action):
    """Appends to evaluations.csv and draws what each epoch gets wrong.

    With `published`, the run was trained by this command, which has just distributed that publication.
    """

    def act(
        self,
        plan: dict[str, Any],
        published: dict[str, Any],
        epoch: str,
        host: str,
        session: str,
        run_folder: str,
        path: str,
        packs: str,
    ) -> dict[str, Any]:
        """Send what is missing, start, follow, collect, record; a command that is ended ends the evaluation."""
        run, into, folder = plan["run"], Path(plan["folder"]), f"{run_folder}/evaluate"
        recorded = RunFolder(into)
        epochs = recorded.choose_epochs(epoch)
        if self._task.check_mode:
            chosen = f"epoch{'s' if len(epochs) > 1 else ''} {ranges(sorted(epochs))}"
            return {"changed": True, "show_last": f"{run}: would evaluate {chosen} on {host}; with --check nothing was started"}
        if not published:
            launched = Published.launched(plan, Path(packs))
            distribute(self, launched, path, host)
            published = to_plain(launched)
        SharedFolder(self, host).agree([_snapshot(into, run_folder, epoch) for epoch in epochs])
        arguments = self.evaluate("worker_arguments + worker_manifest", published=published)
        job = ["-m", "trainer", "evaluate", *arguments, "--epochs", ",".join(map(str, epochs)), "--out", folder]
        script = self.start_script(f"Evaluation of {run}", folder, job, published=published)
        files = [
            {"path": f"{run_folder}/config.yml", "content": (into / "config.yml").read_text(encoding="utf-8")},
            {"path": f"{folder}/run_worker.sh", "content": script, "mode": "0750"},
        ]
        modules.require(self, "worker_files", {"files": files})
        self._evaluate(run, into, Worker(self, run_folder, folder, session))
        return {"changed": True, "show_last": _results(recorded, epochs)}

    def _evaluate(self, run: str, into: Path, worker: Worker) -> None:
        with heeding_signals() as ended:
            try:
                self._follow(run, worker, ended)
                worker.collect(into, "evaluate")
            except HostUnreachable as error:
                raise AnsibleActionFail(f"the chief can't be reached: {error}") from None
            finally:
                if ended():
                    self._end(worker)

    def _follow(self, run: str, worker: Worker, ended: Callable[[], bool]) -> None:
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


def _snapshot(run: Path, remote: str, epoch: int) -> Item:
    path = layout.snapshot_path(run, epoch)
    return Item("the snapshot", path, f"{remote}/{path.relative_to(run)}")


def _results(run: RunFolder, epochs: list[int]) -> str:
    evaluated = [_read(layout.record_path(run.path / "evaluate", epoch)) for epoch in epochs]
    pictures = [{key: project.relative(path) for key, path in evaluations.draw(run, row).items()} for row in evaluated]
    run.evaluations.append(evaluated)
    return evaluations.show(run, evaluated, pictures)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise AnsibleActionFail(f"the chief gave no {path.name} that can be read; run the command again, and see its log")
    return evaluation(path.read_text(encoding="utf-8"))
