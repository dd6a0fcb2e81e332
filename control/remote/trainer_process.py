"""The commands of `python -m control`, each in its own process."""

import collections
import json
import subprocess
import sys
import tempfile
from typing import Any

from control.common import project
from control.common.progress_line import Line
from trainer.common.errors import REFUSAL, LockstepError


def run_trainer(argv: list[str], doing: str = "", given: Any = None) -> dict[str, Any]:
    """The JSON object that a command prints last; earlier lines are shown as progress.

    Args:
        argv: the command and its arguments.
        doing: prefix of the progress line, if it has one.
        given: what the command reads as JSON from its standard input.

    Raises:
        LockstepError: what the command refused.
    """
    line, output = Line(), collections.deque[str](maxlen=1)
    with tempfile.TemporaryFile("w+") as request, tempfile.TemporaryFile("w+") as errors:
        json.dump(given, request)
        request.seek(0)
        settings: Any = {"stdin": request, "stdout": subprocess.PIPE, "stderr": errors, "text": True, "cwd": project.ROOT}
        with subprocess.Popen([sys.executable, "-m", "control", *argv], **settings) as process:
            assert process.stdout is not None
            try:
                for row in process.stdout:
                    output.append(row)
                    if not row.startswith("{"):
                        line.update(f"{doing}: {row.strip()}" if doing else row.strip())
            except BaseException:
                process.kill()
                raise
        errors.seek(0)
        error = errors.read()
    line.end()
    if process.returncode != 0:
        raise LockstepError(refusal(error) or error.strip() or f"the {argv[0]} failed with exit code {process.returncode}")
    result: dict[str, Any] = json.loads(output[-1])
    return result


def refusal(output: str) -> str:
    """The message at the end of one of our processes' standard error, any number of lines; empty if it ended without one."""
    _, prefix, message = f"\n{output}".rpartition(f"\n{REFUSAL}")
    return message.strip() if prefix else ""
