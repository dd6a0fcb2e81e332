"""Run a benchmark on one host in a tmux session, with progress, and fetch its results; nothing is left there."""

import shlex
from pathlib import Path, PurePosixPath
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure

from benchmarks.analysis.benchmark import CODE
from control.children import heeding_signals
from control.remote import lean
from control.remote.feed import HostUnreachable
from control.remote.remote import Worker
from control.remote.shared_folder import Item, SharedFolder
from control.remote.upload import with_progress
from control.runs import outcome
from control.runs.cluster import path_digest
from plugins.shared.action import Action
from trainer import records
from trainer.errors import DONE, refusal

GRACE_S = 2


class ActionModule(Action):
    """Returns `timed`: the benchmark's results.json."""

    def act(self, bench: dict[str, Any], host: str, folder: str, code: str, packs: str, script: str) -> dict[str, Any]:
        """Send what is missing, start, follow, fetch; always end and remove it."""
        self.bench, self.host, self.folder = bench, host, folder
        session = f"{self.bench['name']}-{path_digest(self.folder)}"
        try:
            with heeding_signals() as ended:
                try:
                    self._send(code, packs, script)
                    self._run_benchmark(session, ended)
                    timed = records.answer(self._shell(f"cat {shlex.quote(folder)}/results.json"), "results.json")
                finally:
                    self._leave(session)
        except (HostUnreachable, AnsibleConnectionFailure) as error:
            raise AnsibleActionFail(
                f"{self.host} can't be reached: {error}; what runs there is session {session} of tmux -L lockstep"
            ) from None
        return {"changed": False, "timed": timed}

    def _send(self, code: str, packs: str, script: str) -> None:
        """Send the trainer, unless it is there, the configuration, the snapshot, the start script."""
        # Leftovers of an earlier benchmark of that name would be taken for this one's.
        self._shell(f"rm -rf {shlex.quote(self.folder)}")
        archive = CODE.build(Path(packs).parent / "code")
        if archive.name != self.bench["code_name"]:
            raise AnsibleActionFail("the project's files were changed after this command had begun; run it again")
        SharedFolder(self, self.host).agree([Item("the trainer", archive, code, self.bench["code_sha256"])])
        files = [
            {"path": f"{self.folder}/config.yml", "content": self.bench["config_yaml"]},
            {"path": f"{self.folder}/run_worker.sh", "content": script, "mode": "0750"},
        ]
        lean.require(self, "worker_files", {"files": files})
        if self.bench["snapshot"]:
            with_progress(self, "the snapshot", self.host).file(Path(self.bench["snapshot"]), f"{self.folder}/model.keras")

    def _run_benchmark(self, session: str, ended: Any) -> None:
        worker = Worker(self, self.folder, self.folder, session)

        def check() -> None:
            if ended():
                raise AnsibleActionFail(f"{self.bench['name']} was ended before its last pass; nothing of it is left on {self.host}")

        seen = self.run_session(worker, lambda record: f"{self.host}: {record['note']}", check)
        if seen.exit is None or seen.exit["exit_code"] != DONE:
            raise AnsibleActionFail(failure(self.host, seen.exit, worker.last_lines()))

    def _leave(self, session: str) -> None:
        lean.execute(self, "tmux_session", {"name": session, "state": "absent", "grace": GRACE_S})
        parent = shlex.quote(str(PurePosixPath(self.folder).parent))
        self._shell(f"rm -rf {shlex.quote(self.folder)} && if [ -d {parent} ]; then rmdir --ignore-fail-on-non-empty {parent}; fi")

    def _shell(self, script: str) -> str:
        completed = self._low_level_execute_command(script, sudoable=False, executable="/bin/sh")
        if completed["rc"] != 0:
            raise AnsibleActionFail(f"{self.host}: {script}: {completed['stderr'].strip()}")
        return str(completed["stdout"])


def failure(host: str, ended: dict[str, Any] | None, lines: list[str]) -> str:
    """Why there are no results: the benchmark's own refusal, or how it ended and the end of its log."""
    how = outcome.GONE if ended is None else f"exit code {ended['exit_code']}"
    refused = refusal("\n".join(lines))
    if refused:
        return f"{host}: {refused}"
    last = "\n  ".join(lines)
    return f"{host}: the benchmark failed, {how}; the last lines of its log:\n  {last}"
