"""The trainer's commands on the control node, each in a process of its own, with progress."""

import collections
import json
import subprocess
import sys
import tempfile
from typing import Any

from ansible.utils.display import Display

from plugins.shared import control
from trainer.analysis.progress import Line
from trainer.errors import LockstepError, refusal


def run(argv: list[str], doing: str) -> dict[str, Any]:
    """The JSON object that a command prints last; lines before it are shown as progress.

    Args:
        argv: the command and its arguments.
        doing: stands before the progress.

    Raises:
        LockstepError: what the command refused.
    """
    line, output = Line(Display(), control.terminal()), collections.deque[str](maxlen=1)
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "trainer", *argv], stdout=subprocess.PIPE, stderr=errors, text=True, cwd=control.ROOT
        ) as process,
    ):
        assert process.stdout is not None
        for row in process.stdout:
            output.append(row)
            if not row.startswith("{"):
                line.update(f"{doing}: {row.strip()}")
        process.wait()
        errors.seek(0)
        error = errors.read()
    line.end()
    if process.returncode != 0:
        raise LockstepError(refusal(error) or error.strip())
    found: dict[str, Any] = json.loads(output[-1])
    return found
