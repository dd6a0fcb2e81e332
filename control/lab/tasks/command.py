"""Run a lab command on this machine: its output as progress, a failure as one clear line."""

import os
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible.utils.display import Display

from control import command_line
from control.lab import lab
from control.progress import Line
from control.task import Task
from trainer.errors import LockstepError

EACH = "EACH"
UNDO = "what is half made goes with ansible-playbook lab.yml -e state=absent"


class Command(Task):
    """Arguments: `argv`, `doing` (words for the user), `environment`, `seconds` (limit), `may_fail`.

    With `each`, a list of names, the command runs once per name, in parallel; `EACH` in `argv` stands for the name.
    Returns `code` and `lines` (of all); `changed` unless it may fail and did.
    """

    def act(self) -> dict[str, Any]:
        """Run it."""
        self.doing, self.argv = str(self.arguments["doing"]), [str(part) for part in self.arguments["argv"]]
        if "each" not in self.arguments:
            results = [self._run_shown(Line(Display(), command_line.terminal()))]
        else:
            results = self._run_each([str(name) for name in self.arguments["each"]])
        return {"changed": results[0][0] == 0, "code": results[0][0], "lines": [line for _, lines in results for line in lines]}

    def _run_shown(self, line: Line) -> tuple[int, list[str]]:
        try:
            return self._run(self.argv, "", lambda row: line.update(f"{self.doing}: {row}"))
        finally:
            line.end()

    def _run_each(self, names: list[str]) -> list[tuple[int, list[str]]]:
        argvs = [[name if part == EACH else part for part in self.argv] for name in names]
        with ThreadPoolExecutor(len(names)) as pool:
            return list(pool.map(self._run, argvs, [f" on {name}" for name in names], [_silence] * len(names)))

    def _run(self, argv: list[str], where: str, tell: Callable[[str], None]) -> tuple[int, list[str]]:
        environment = {**os.environ, **(self.arguments.get("environment") or {})}
        code, lines = run(argv, environment, float(self.arguments.get("seconds", 1800)), tell)
        if code != 0 and not self.arguments.get("may_fail", False):
            raise LockstepError(f"{self.doing}{where} failed: {lab.telling_line(lines)} ({UNDO})")
        return code, lines


def _silence(_row: str) -> None:
    """Several at once would overwrite each other's progress."""


def run(argv: list[str], environment: dict[str, str], seconds: float, tell: Callable[[str], None]) -> tuple[int, list[str]]:
    """Exit code and lines of a command, ended after `seconds`; every line is passed on as it comes."""
    lines: list[str] = []
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    ) as process:
        assert process.stdout is not None
        bound = threading.Timer(seconds, process.kill)
        bound.start()
        try:
            for row in process.stdout:
                lines.append(row.rstrip())
                tell(row.strip())
            process.wait()
        finally:
            bound.cancel()
    return process.returncode, lines
