"""A program of ours that runs on one host in a tmux session, in a folder of its own; nothing is left there."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, TypeVar

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure

from control.common.child_playbooks import heeding_signals
from control.remote import modules
from control.remote.follow import HostUnreachable
from control.remote.worker_access import Worker
from control.runs.results import outcome
from plugins.shared.base_action import Action
from trainer.common.errors import DONE, refusal

GRACE_S = 2
Result = TypeVar("Result")


@dataclass(frozen=True)
class Job:
    """Where it runs, and its names in messages."""

    what: str
    """As in `the benchmark`."""
    host: str
    session: str
    folder: str
    """Made for it, and removed at the end."""
    run_folder: str
    """The folder, or one above it from which its files are collected."""


class HostJob(Action):
    """An action with such a program."""

    def run_job(
        self,
        job: Job,
        send: Callable[[], None],
        shown: Callable[[dict[str, Any]], str],
        fetch: Callable[[Worker], Result],
        abandon: Callable[[], None] = lambda: None,
    ) -> Result:
        """Send, start `run_worker.sh`, follow, fetch; always end and remove it.

        Args:
            job: where.
            send: brings what the program needs, `run_worker.sh` too, into the folder.
            shown: the progress line of a phase's record.
            fetch: called if it ended well.
            abandon: called if the command was ended, so that none of its later tasks runs.
        """
        worker = Worker(self, job.run_folder, job.folder, job.session)
        try:
            with heeding_signals() as ended:
                try:
                    # Leftovers of an earlier one would be taken for this one's.
                    self._remove(job)
                    send()
                    self._follow(job, worker, shown, ended)
                    return fetch(worker)
                finally:
                    if ended():
                        abandon()
                    self._remove(job)
        except (HostUnreachable, AnsibleConnectionFailure) as error:
            raise AnsibleActionFail(
                f"{job.host} can't be reached: {error}; what runs there is session {job.session} of tmux -L lockstep"
            ) from None

    def _follow(self, job: Job, worker: Worker, shown: Callable[[dict[str, Any]], str], ended: Callable[[], bool]) -> None:
        def check() -> None:
            if ended():
                raise AnsibleActionFail(f"{job.what} was ended before it was done; nothing of it is left on {job.host}")

        seen = self.run_session(worker, shown, check)
        if seen.exit is None or seen.exit["exit_code"] != DONE:
            raise AnsibleActionFail(failure(job.what, job.host, seen.exit, worker.last_lines()))

    def _remove(self, job: Job) -> None:
        modules.execute(self, "tmux_session", {"name": job.session, "state": "absent", "grace": GRACE_S})
        parent = shlex.quote(str(PurePosixPath(job.folder).parent))
        self.shell(job.host, f"rm -rf {shlex.quote(job.folder)} && if [ -d {parent} ]; then rmdir --ignore-fail-on-non-empty {parent}; fi")

    def shell(self, host: str, script: str) -> str:
        """Run a script on a host, and return its output."""
        completed = self._low_level_execute_command(script, sudoable=False, executable="/bin/sh")
        if completed["rc"] != 0:
            raise AnsibleActionFail(f"{host}: {script}: {completed['stderr'].strip()}")
        return str(completed["stdout"])


def failure(what: str, host: str, ended: dict[str, Any] | None, lines: list[str]) -> str:
    """Why there are no results: the program's own refusal, or how it ended and the end of its log."""
    how = outcome.GONE if ended is None else f"exit code {ended['exit_code']}"
    refused = refusal("\n".join(lines))
    if refused:
        return f"{host}: {refused}"
    last = "\n  ".join(lines)
    return f"{host}: {what} failed, {how}; the last lines of its log:\n  {last}"
