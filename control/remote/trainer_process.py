"""The commands of `python -m control`, each in its own process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from typing import Any

from control.common import project
from control.common.progress_line import Line
from trainer.common.errors import LockstepError, refusal


class _Process:
    """A command that waits for its request: one line of JSON on its standard input."""

    def __init__(self, argv: Sequence[str]):
        self._parent = os.getpid()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - until `errors`
        settings: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors, "text": True, "cwd": project.ROOT}
        self._process = subprocess.Popen([sys.executable, "-m", "control", *argv], **settings)

    def answer(self, given: Any) -> Generator[str]:
        """Lines that it prints, the last of them its result, if any; it is killed if it is not heard to the end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            # A command that has ended already says in `errors` why.
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(f"{json.dumps(given)}\n")
                self._process.stdin.close()
            yield from self._process.stdout
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            raise
        finally:
            self._process.stdout.close()

    def exit_code(self) -> int:
        """Its exit code once it has ended; 0 in a process that is not its parent, which can't know."""
        return self._process.wait() if os.getpid() == self._parent else 0

    def errors(self) -> str:
        """Its standard error, without the blanks around it."""
        with self._errors as errors:
            errors.seek(0)
            return errors.read().strip()


_begun: dict[tuple[str, ...], _Process] = {}


def begin(argv: Sequence[str]) -> None:
    """Start a command whose request comes later, with `run_trainer`, perhaps from a process that this one forks: its imports take long."""
    _begun[tuple(argv)] = _Process(argv)


def run_trainer(argv: list[str], doing: str = "", given: Any = None) -> dict[str, Any]:
    """The JSON object that a command prints last; earlier lines are shown as progress.

    Args:
        argv: the command and its arguments.
        doing: prefix of the progress line, if it has one.
        given: what the command reads as JSON from its standard input.

    Raises:
        LockstepError: what the command refused.
    """
    line, output = Line(), ""
    process = _begun.pop(tuple(argv), None) or _Process(argv)
    with contextlib.closing(process.answer(given)) as rows:
        for row in rows:
            output = row
            if not row.startswith("{"):
                line.update(f"{doing}: {row.strip()}" if doing else row.strip())
    line.end()
    code, error = process.exit_code(), process.errors()
    if code or not output.startswith("{"):
        ended = f"failed with exit code {code}" if code else "ended without a result"
        raise LockstepError(refusal(error) or error or f"the {argv[0]} {ended}")
    result: dict[str, Any] = json.loads(output)
    return result
