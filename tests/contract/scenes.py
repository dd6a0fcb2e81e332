"""Commands that are interrupted at a moment of choice: by Ctrl-C, as a terminal sends it, or with all their processes killed."""

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.contract.held import SMALL
from tests.local_project import LocalProject, all_sessions, command_lines
from tests.project import SLOWEST, await_until, await_while

EPOCHS = "epochs=1"
NOTHING, BACK, ON = "This command started nothing", "The launch was taken back: none of its workers is running", "Training goes on: "
CLAIM = "Claim the port, write the run's files, start the worker"
TASKS = """import os
import signal
from ansible.plugins.callback import CallbackBase


class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME, CALLBACK_NEEDS_ENABLED = 2.0, "notification", "tasks", True
    command, forks = os.getpid(), 0

    def v2_playbook_on_task_start(self, task, is_conditional):
        with open(os.environ["TASKS"], "a") as stream:
            stream.write(f"{task.name}\\n")
        if task.name == os.environ["FORKING"]:
            os.register_at_fork(after_in_parent=self.forked)

    def forked(self):
        if os.getpid() == self.command:
            self.forks += 1
            if self.forks == 2:
                os.killpg(0, signal.SIGINT)
"""
"""Writes the name of each task that begins; presses Ctrl-C in the middle of the fork for the second host of a task."""


def task(name):
    """A task of the command begins."""
    return lambda scene: scene.tasks.is_file() and f"{name}\n" in scene.tasks.read_text()


def shown(text):
    """The command has printed a text."""
    return lambda scene: text in scene.output.read_text()


def begun(scene):
    """It has a process group, as a shell gives it one."""
    return os.getpgid(scene.process.pid) == scene.process.pid


def recorded(scene):
    """The run is known on the control node."""
    return (scene.project.run(scene.name) / "cluster.json").is_file()


def session(rank):
    """A worker's session is there."""
    return lambda scene: scene.name.replace(".", "+") in sessions(rank)


def joining(scene):
    """A worker has begun to wait for the other."""
    metrics = scene.project.node(1, scene.name) / "workers/worker1/metrics.jsonl"
    return metrics.is_file() and '"joining"' in metrics.read_text()


EARLY = {"at once": begun, "planning": task("Make the plan")}
"""Before there is a plan, which may end without words."""
MOMENTS = {
    **EARLY,
    "the plan": shown("results "),
    "after the plan": task("Take the hosts"),
    "looking": task("Look at the host"),
    "publishing": task("Publish on the control node"),
    "sending": task("Put both where every worker reads them"),
    "the launch": task("See what is there"),
    "recording": task("Judge it and record the run on the control node"),
    "the record": recorded,
    "starting": task(CLAIM),
    "one worker": session(0),
    "the other worker": session(1),
    "both workers": lambda scene: session(0)(scene) and session(1)(scene),
    "joining": joining,
    "all started": task("Note that all workers run"),
    "watching": task("Watch the workers"),
}


class Scene:
    """A training that is interrupted."""

    def __init__(
        self,
        project: LocalProject,
        name: str,
        pictures: Path,
        folder: Path,
        epochs: str = EPOCHS,
        forking: str = "",
        how: tuple[str, ...] = SMALL,
    ):
        """Press Enter; `forking`: the task in which Ctrl-C comes during a fork."""
        self.project, self.name, self.output, self.tasks = project, name, folder / "output", folder / "tasks"
        folder.mkdir(exist_ok=True)
        project.hold(name, 6)
        (project.root / "plugins/callback/tasks.py").write_text(TASKS)
        environment = {**project.environment(), "ANSIBLE_CALLBACKS_ENABLED": "tasks", "TASKS": str(self.tasks), "FORKING": forking}
        with self.output.open("w") as stream:
            settings = {"env": environment, "stdout": stream, "stderr": subprocess.STDOUT, "start_new_session": True}
            self.process = project.launch("train", f"run={name}", f"dataset={pictures}", *how, epochs, **settings)

    def interrupt_at(self, moment: str) -> str:
        """Press Ctrl-C at one of `MOMENTS`; gives what was printed in all."""
        await_while(self.words, lambda: MOMENTS[moment](self), 120, moment, every=0.005)
        return self.interrupt()

    def words(self) -> str | None:
        """What was printed in all, once the command has ended."""
        return None if self.process.poll() is None else self.output.read_text()

    def interrupt(self) -> str:
        """Press Ctrl-C; gives what was printed in all."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.ended()

    def ended(self) -> str:
        """Wait for the end of the command; gives what was printed in all."""
        self.process.wait(SLOWEST * 120)
        return self.output.read_text()

    def processes(self) -> dict[int, str]:
        """Trainers of the run, and what starts them: command lines by process id."""
        marks = [str(self.project.node(worker, self.name)) for worker in (1, 2)]
        # The tmux server keeps the command line of the session that started it, perhaps for another copy's sessions.
        return {pid: line for pid, line in command_lines().items() if any(mark in line for mark in marks) and not line.startswith("tmux\0")}

    def claims(self) -> list[Path]:
        """Claims of the run."""
        return [path for path in self.project.root.glob(".lockstep/worker*/locks/*.json") if f'"{self.name}"' in path.read_text()]


def sessions(rank: int | None = None) -> str:
    """Names of the sessions there are."""
    return "\n".join(name for name in all_sessions() if rank is None or f"-w{rank}-" in name)


def last_word(output: str) -> str:
    """What the command said last of what goes on; empty when it was too early to say anything."""
    sentences = [word for word in (NOTHING, BACK, ON) if word in output]
    assert len(sentences) <= 1, output
    return sentences[0] if sentences else ""


def launched_half(project, pictures, tmp_path, name) -> Scene:
    """A launch whose command was killed when one worker had been started: the other's tmux waits."""
    slow = tmp_path / "bin"
    slow.mkdir()
    waits = shlex.quote(str(tmp_path / "waits"))
    case = f'case "$*" in *new-session*{name}-w1*) touch {waits}; exec sleep 600;; esac'
    (slow / "tmux").write_text(f'#!/bin/sh\n{case}\nPATH=${{PATH#*:}} exec tmux "$@"\n')
    (slow / "tmux").chmod(0o755)
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{slow}:{path}"
    try:
        scene = Scene(project, name, pictures, tmp_path)
    finally:
        os.environ["PATH"] = path
    await_until(lambda: session(0)(scene) and (tmp_path / "waits").exists(), 90, "one of two workers", ended=scene.words)
    return scene


def kill_hard(scene: Scene) -> None:
    """As the kernel does when memory is short: no process of the command says anything more."""
    # Those that are stopped start no others, and keep their parents.
    members: set[int] = set()
    while found := {scene.process.pid, *descendants(scene.process.pid)} - members:
        members |= found
        send(found, signal.SIGSTOP)
    send(members, signal.SIGKILL)
    scene.process.wait()


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, however far down."""
    everybody = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [one for one in everybody if descends(one, pid)]


def descends(pid: int, ancestor: int) -> bool:
    """Whether a process was started by another, however far up."""
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
        if pid == ancestor:
            return True
    return False
