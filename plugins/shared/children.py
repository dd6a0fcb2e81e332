"""Playbooks of our own as child processes: each a complete command, ended with whoever started it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible import context

from plugins.shared import control

POLL_S = 0.2
GRACE_S = 10.0
FORWARDED = {
    "remote_user": "--user",
    "private_key_file": "--private-key",
    "ssh_common_args": "--ssh-common-args",
    "ssh_extra_args": "--ssh-extra-args",
    "connection": "--connection",
    "timeout": "--timeout",
    "forks": "--forks",
}
"""Options of ansible-playbook that say how hosts are reached; what they are to do is the child's own."""


class Interrupted(Exception):
    """The command that measures was ended."""


@contextmanager
def heeding_signals() -> Iterator[Callable[[], bool]]:
    """Give a function that says whether this process was asked to end, or lost the one that started it."""
    parent = os.getppid()
    asked: list[int] = []
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {name: signal.signal(name, lambda number, _: asked.append(number)) for name in names}
    try:
        yield lambda: bool(asked) or os.getppid() != parent
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@dataclass
class Playbook:
    """One playbook in a process group of its own, its output in a file."""

    path: str
    variables: dict[str, Any]
    log: Path

    def run(self, ended: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> int:
        """Run it to its end.

        Args:
            ended: whether to give up.
            meanwhile: called a few times a second.

        Returns:
            Its exit code.

        Raises:
            Interrupted: `ended` said so; the child's processes are gone.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as stream:
            process = subprocess.Popen(
                self._argv(), stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, cwd=control.ROOT, start_new_session=True
            )
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

    def _argv(self) -> list[str]:
        options = [part for name, option in FORWARDED.items() if _given(name) for part in (option, str(context.CLIARGS[name]))]
        inventories = [part for one in context.CLIARGS.get("inventory") or () for part in ("-i", one)]
        return [sys.executable, "-m", "ansible", "playbook", *inventories, *options, "-e", json.dumps(self.variables), self.path]


def _given(name: str) -> bool:
    return context.CLIARGS.get(name) not in (None, "", 0)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the child as Ctrl-C does, so that it ends its own workers (they left its process group); then by force."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(GRACE_S)
            return
        except subprocess.TimeoutExpired:
            continue
