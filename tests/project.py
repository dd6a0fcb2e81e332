"""A scratch copy of the project, driven through its playbooks as a person would."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from trainer.rundir.schemas import read_history

EXHAUSTIVE = pytest.mark.exhaustive
ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ["trainer", "control", "plugins", "benchmarks"]
PARTS = [*PACKAGES, "ansible.cfg", "roles", "playbooks", "templates", "inventory", "requirements", "examples"]
LEFT = {"inventory": ["lab"], "benchmarks": ["results"]}
SLOWEST = 3
"""How many times slower than usual a machine that tests may be: waits that end a test are so much longer."""
BETWEEN = """
- ansible.builtin.import_playbook: playbooks/stages/plan.yml
- ansible.builtin.import_playbook: playbooks/stages/distribute.yml
- hosts: cluster[0]
  gather_facts: false
  tasks:
    - ansible.builtin.command:
        argv: {argv}
- ansible.builtin.import_playbook: playbooks/stages/launch.yml
- ansible.builtin.import_playbook: playbooks/stages/watch.yml
"""


@dataclass
class Runs:
    """Runs on the control node."""

    root: Path

    def run(self, name: str) -> Path:
        """A run directory."""
        return self.root / "runs" / name

    def summary(self, name: str) -> dict[str, Any]:
        """summary.json of a run."""
        return json.loads((self.run(name) / "summary.json").read_text())

    def history(self, name: str) -> list[dict[str, Any]]:
        """The rows of history.csv of a run."""
        return read_history(self.run(name) / "history.csv")


@dataclass
class Project(Runs):
    """The copy and the inventory that its commands are given."""

    inventory: str = ""
    started: list[subprocess.Popen[str]] = field(default_factory=list, kw_only=True)
    """Commands that were started and not waited for at once."""
    popen: Callable[..., subprocess.Popen[str]] = field(default=subprocess.Popen, kw_only=True)
    """What starts commands."""

    def play(self, command: str, *arguments: str, check: bool = True, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """Run a root playbook to its end; `timeout` in seconds of a usual machine."""
        with self.launch(command, *arguments, stderr=subprocess.PIPE) as playbook:
            try:
                printed = playbook.communicate(timeout=SLOWEST * timeout)
            except BaseException:
                playbook.kill()
                raise
        done = subprocess.CompletedProcess(playbook.args, playbook.returncode, *printed)
        if check:
            assert done.returncode == 0, f"{command} {arguments}:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
        return done

    def train_attacked(self, argv: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
        """A training with a command on its first host between publication and launch; its arguments may be Jinja."""
        (self.root / "attack.yml").write_text(BETWEEN.format(argv=json.dumps(argv)))
        return self.play("attack", *arguments, check=False)

    def start(self, command: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a root playbook and return at once."""
        self.started.append(self.launch(command, *arguments, stderr=subprocess.STDOUT, start_new_session=True))
        return self.started[-1]

    def launch(self, command: str, *arguments: str, **settings: Any) -> subprocess.Popen[str]:
        """Start a root playbook in the copy's folder, with a user's environment and a pipe; `settings` of `Popen` override these."""
        usual = {"cwd": self.root, "env": self.environment(), "stdout": subprocess.PIPE, "text": True}
        return self.popen(self.argv(command, *arguments), **{**usual, **settings})

    def end_started(self) -> None:
        """Kill the commands that were started and have not ended."""
        for playbook in self.started:
            if playbook.poll() is None:
                os.killpg(playbook.pid, signal.SIGKILL)
                playbook.wait(20)
        self.started.clear()

    def argv(self, command: str, *arguments: str) -> list[str]:
        """The command line; `a=b` arguments become `-e a=b`, as JSON where Ansible would split at a space."""
        words = [str(Path(sys.executable).parent / "ansible-playbook"), f"{command}.yml"]
        words += ["-i", self.inventory] if self.inventory else []
        for argument in arguments:
            name, _, value = argument.partition("=")
            spaced = " " in value and not argument.startswith(("-", "{"))
            words += [argument] if argument.startswith("-") else ["-e", json.dumps({name: value}) if spaced else argument]
        return words

    def environment(self) -> dict[str, str]:
        """The environment of a person's shell, with this copy of the project in front."""
        # As in an activated shell: commands that are printed begin with the bare program.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return {**os.environ, "PATH": path, "PYTHONPATH": str(self.root), "ANSIBLE_NOCOLOR": "1", "LOCKSTEP_RECAP": "1", "TERM": "dumb"}


STUBS = {"tests/stub_worker.py": "trainer/worker/backend.py", "tests/stub_model.py": "control/runs/planning/examine_model.py"}
"""What takes whose place, so that nothing of a training needs TensorFlow."""


def copy_project(root: Path, stub: bool = False) -> None:
    """Copy what the commands need; not the inventory of a lab that runs elsewhere, nor what benchmarks measured.

    `stub`: with `tests.stub_worker` for a worker.
    """
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            # Compiled code goes along, which halves the start of a process; not what is being written at the moment.
            shutil.copytree(source, root / part, ignore=shutil.ignore_patterns("*.pyc.*", *LEFT.get(part, [])))
        else:
            shutil.copy(source, root / part)
    for playbook in ROOT.glob("*.yml"):
        shutil.copy(playbook, root)
    for source, place in STUBS.items() if stub else ():
        shutil.copy(ROOT / source, root / place)
    without_preloading(root / "inventory/local")


NO_PRELOADING = "worker_preload: false\n"


def without_preloading(inventory: Path) -> None:
    """Let no host import TensorFlow while a plan is made: hardly a test needs it, and the processes stay for a while."""
    variables = inventory / "group_vars/workers.yml"
    variables.write_text(f"{variables.read_text()}{NO_PRELOADING}")


def await_until(
    condition: Callable[[], object], seconds: float, what: str, every: float = 0.1, ended: Callable[[], str | None] = lambda: None
) -> None:
    """Poll a condition; fail the test when it does not come true in the seconds that it takes on the slowest machine.

    `ended`: gives the output of what should bring it about once that has ended, None before; the test then fails at once.
    """
    deadline = time.monotonic() + SLOWEST * seconds
    while not condition():
        words = ended()
        if words is not None:
            assert condition(), f"ended before: {what}\n{words}"
            return
        assert time.monotonic() < deadline, f"not within {SLOWEST * seconds:.0f} s: {what}"
        time.sleep(every)


def await_while(words: Callable[[], str | None], condition: Callable[[], object], seconds: float, what: str, every: float = 0.1) -> None:
    """Poll a condition that something still running should bring about; fail if it ends first. `words`: as `ended` of `await_until`."""
    await_until(condition, seconds, what, every, words)
    left = words()
    assert left is None, left


def await_during(
    playbook: subprocess.Popen[str] | None, condition: Callable[[], object], seconds: float, what: str, every: float = 0.1
) -> None:
    """Poll a condition that a running command should bring about; fail with its output if it ends first. None: no command to watch."""

    def words() -> str | None:
        return None if playbook is None or playbook.poll() is None else playbook.communicate()[0] or ""

    await_while(words, condition, seconds, what, every)


def ending_after_a_failure(name: str) -> Callable[..., Iterator[None]]:
    """A fixture for all tests: what the fixture `name` has started ends with a test that fails, as the next one has the same ports."""

    @pytest.fixture(autouse=True)
    def nothing_left_of_a_failure(request: pytest.FixtureRequest) -> Iterator[None]:
        failures = request.session.testsfailed
        yield
        if request.session.testsfailed > failures and name in request.fixturenames:
            request.getfixturevalue(name).end_all()

    return nothing_left_of_a_failure
