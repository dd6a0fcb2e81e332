"""Run a lab command on this machine: its output as progress, a failure as one clear line."""

import os
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from ansible.utils.display import Display

from control.common import command_line
from control.common.progress_line import Line
from control.common.task import Task
from control.lab import lab_inventory
from trainer.common.errors import LockstepError

UNDO = "what is half made goes with ansible-playbook lab.yml -e state=absent"


def command(task: Task) -> dict[str, Any]:
    """Arguments: `argv`, `doing` (words for the user), `environment` (beside that of the fact `lab`), `seconds` (limit), `may_fail`.

    Returns `code` and `lines`; `changed` unless it may fail and did.
    """
    argv, doing = [str(part) for part in task.arguments["argv"]], str(task.arguments["doing"])
    environment = {**os.environ, **task.task_vars.get("lab", {}).get("environment", {}), **task.arguments.get("environment", {})}
    line = Line(Display(), command_line.terminal())
    try:
        code, lines = _run(argv, environment, float(task.arguments.get("seconds", 1800)), lambda row: line.update(f"{doing}: {row}"))
    finally:
        line.end()
    if code != 0 and not task.arguments.get("may_fail", False):
        raise LockstepError(f"{doing} failed: {lab_inventory.telling_line(lines)} ({UNDO})")
    return {"changed": code == 0, "code": code, "lines": lines}


def _run(argv: list[str], environment: dict[str, str], seconds: float, tell: Callable[[str], None]) -> tuple[int, list[str]]:
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
