"""The trainer's commands on the control node, each in its own process, with progress."""

import collections
import json
import subprocess
import sys
import tempfile
from typing import Any

from control import project
from control.progress import Line
from trainer.errors import LockstepError, refusal


def run(argv: list[str], doing: str) -> dict[str, Any]:
    """The JSON object that a command prints last; earlier lines are shown as progress.

    Args:
        argv: the command and its arguments.
        doing: prefix of the progress line.

    Raises:
        LockstepError: what the command refused.
    """
    line, output = Line(), collections.deque[str](maxlen=1)
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "control", *argv], stdout=subprocess.PIPE, stderr=errors, text=True, cwd=project.ROOT
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
    result: dict[str, Any] = json.loads(output[-1])
    return result
