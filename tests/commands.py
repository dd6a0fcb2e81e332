"""Commands that touch no host, without Ansible's five seconds: in a scratch project, as its user would type them.

project = Commands(tmp_path)
assert project.refusal("train", "workers=9") == "workers=9: the inventory has 5 hosts; ..."
assert "x 7 epochs" in project.check("train", "epochs=7")

`tests/command_server.py` says what runs; tests/contract/test_commands.py shows that each command is wired to it.
"""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.project import ROOT, Project, copy_project

HUNG_S = 300
"""A command that takes longer never ends."""
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


@dataclass(frozen=True)
class Ended:
    """What came of a command."""

    returncode: int
    """As `ansible-playbook`'s."""
    stdout: str
    """What it prints."""
    changed: bool
    reached: str | None
    """The first task that touches a host, if it came to one; nothing was done from there on."""
    facts: dict[str, Any] = field(repr=False)
    """What its tasks have found out, by name."""
    log: str
    """What its processes printed meanwhile."""


@dataclass
class Commands(Project):
    """A scratch project whose commands run in process, as far as they touch no host."""

    constants: dict[str, Any] = field(default_factory=dict, kw_only=True)
    """Constants of the code, as `control.datasets.sources.cifar10:BATCH`, that are others here."""

    def run_here(self, command: str, *arguments: str) -> Ended:
        """Run a command until it ends, or would touch a host."""
        answer, log = self._ask(argv=self.argv(command, *arguments))
        return Ended(**answer, log=log)

    def call(self, function: str, *arguments: Any) -> Any:
        """Call `module:name` where TensorFlow is loaded; arguments and result are JSON."""
        return self._ask(call=function, arguments=arguments)[0]

    def _ask(self, **request: Any) -> tuple[Any, str]:
        with tempfile.TemporaryDirectory() as folder:
            answer, log = Path(folder) / "answer", Path(folder) / "log"
            files = {"root": str(self.root), "answer": str(answer), "log": str(log)}
            ask({**files, "environment": self.environment(), "constants": self.constants, **request})
            printed = log.read_text(errors="replace")
            assert answer.is_file(), f"{request}:\n{printed}"
            return json.loads(answer.read_text()), printed

    def ended(self, command: str, *arguments: str) -> Ended:
        """Run a command that touches no host and succeeds."""
        done = self.run_here(command, *arguments)
        assert (done.returncode, done.reached) == (0, None), f"{command} {arguments}: {done}"
        return done

    def refusal(self, command: str, *arguments: str) -> str:
        """What a command prints that refuses before it touches a host."""
        done = self.run_here(command, *arguments)
        assert (done.returncode, done.reached) == (2, None), f"{command} {arguments}: {done}"
        return done.stdout

    def check(self, command: str, *arguments: str) -> str:
        """What a command prints with `--check` until it would look at a host."""
        done = self.run_here(command, "--check", *arguments)
        assert (done.returncode, done.changed) == (0, False), f"{command} {arguments}: {done}"
        return done.stdout


def ask(request: dict[str, Any]) -> None:
    """Have a command run by this process' server, which is started with the first."""
    server = _server()
    assert server.stdin
    assert server.stdout
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    if not select.select([server.stdout], [], [], HUNG_S)[0]:
        os.killpg(server.pid, signal.SIGKILL)
        _server.cache_clear()
        raise AssertionError(f"no end in {HUNG_S} s: {request}")
    assert server.stdout.readline() == "done\n", "the server of commands has ended"


@cache
def _server() -> subprocess.Popen[str]:
    """The server; it ends with this process."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "plugins/module_utils")])
    environment = {**os.environ, **QUIET, "PYTHONPATH": path}
    argv = [sys.executable, "-m", "tests.command_server"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    server = subprocess.Popen(argv, cwd=ROOT, env=environment, start_new_session=True, **pipes)
    atexit.register(server.communicate)
    return server


def make_commands(root: Path, examined: Path) -> Commands:
    """A scratch project; sizes of models that others have examined are taken from a folder, and kept there."""
    copy_project(root)
    (root / ".lockstep").mkdir()
    examined.mkdir(exist_ok=True)
    (root / ".lockstep/parameters").symlink_to(examined)
    return Commands(root)
