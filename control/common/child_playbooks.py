"""Our own playbooks as child processes: each a complete command that ends with its parent."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible import context

from control.common import project
from trainer.common.errors import LockstepError
from trainer.common.files import FILE

POLL_S = 0.2
GRACE_S = 10.0
FORWARDED = {
    "remote_user": "--user",
    "private_key_file": "--private-key",
    "ssh_common_args": "--ssh-common-args",
    "ssh_extra_args": "--ssh-extra-args",
    "connection": "--connection",
    "timeout": "--timeout",
    "connection_password_file": "--connection-password-file",
    "become_password_file": "--become-password-file",
    "forks": "--forks",
}
SEVERAL = {"inventory": "-i", "vault_ids": "--vault-id", "vault_password_files": "--vault-password-file"}
"""Options of ansible-playbook that say how hosts are reached; the child's task is its own."""


class Interrupted(Exception):
    """The command was ended."""


@contextmanager
def heeding_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether this process was asked to end, or lost its parent."""
    parent = os.getppid()
    asked: list[int] = []
    with _handling(lambda number, _: asked.append(number)):
        yield lambda: bool(asked) or os.getppid() != parent


@contextmanager
def ending_at_signals() -> Iterator[None]:
    """Raise Interrupted in the block when this process is asked to end; once, so that the block can clean up."""
    asked: list[int] = []

    def end(number: int, _: Any) -> None:
        asked.append(number)
        if len(asked) == 1:
            raise Interrupted

    with _handling(end):
        yield


@contextmanager
def _handling(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Have the signals that ask a process to end handled so."""
    before = {name: signal.signal(name, handler) for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for name, earlier in before.items():
            signal.signal(name, earlier)


@dataclass
class Playbook:
    """One playbook in its own process group, with its output in a file."""

    path: str
    variables: dict[str, Any]
    log: Path

    def run(self, ended: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> int:
        """Run it to its end.

        Args:
            ended: whether to give up.
            meanwhile: called a few times a second.

        Returns:
            The exit code.

        Raises:
            Interrupted: `ended` returned true; the child's processes are gone.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        # In a file that only this user can read: every user sees command lines, and a password may be among
        # the variables.
        with tempfile.NamedTemporaryFile("w", suffix=".json", prefix="lockstep-") as given, open(self.log, "ab", opener=_closed) as stream:
            json.dump(self.variables, given)
            given.flush()
            settings: Any = {"stdin": subprocess.DEVNULL, "stdout": stream, "stderr": subprocess.STDOUT, "cwd": project.ROOT}
            process = subprocess.Popen(self._argv(given.name), start_new_session=True, **settings)
            try:
                while True:
                    try:
                        return process.wait(POLL_S)
                    except subprocess.TimeoutExpired:
                        meanwhile()
                    if ended():
                        raise Interrupted
            finally:
                _end(process)

    def _argv(self, variables: str) -> list[str]:
        several = [part for name, option in SEVERAL.items() for one in context.CLIARGS.get(name) or () for part in (option, str(one))]
        single = [part for name, option in FORWARDED.items() if _given(name) for part in (option, str(context.CLIARGS[name]))]
        return [sys.executable, "-m", "ansible", "playbook", *several, *single, "-e", f"@{variables}", self.path]


def _closed(path: str, flags: int) -> int:
    """Open a file; if it is new, other users may not read it."""
    return os.open(path, flags, FILE)


def last_lines(log: Path, count: int) -> list[str]:
    """The end of a child's output without blank lines; empty if there is none."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return [line for line in lines if line.strip()][-count:]


def refuse_questions() -> None:
    """Refuse prompts that the user would have to answer for every child.

    Raises:
        LockstepError: the SSH password was to be prompted for.
    """
    for name, option in (("ask_pass", "-k"), ("ask_vault_pass", "--ask-vault-pass")):
        if context.CLIARGS.get(name):
            raise LockstepError(
                f"{option}: this command starts others, which can't ask for a password; use an SSH key (ssh-copy-id), or a file: "
                "--connection-password-file, --vault-password-file"
            )


def _given(name: str) -> bool:
    return context.CLIARGS.get(name) not in (None, "", 0)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the child with SIGINT, so that it ends its own workers (they left its process group); then by force."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(GRACE_S)
            return
        except subprocess.TimeoutExpired:
            continue
