"""Ctrl-C between Enter and the first step, as a terminal sends it: to every process of the group. The last words must be true."""

import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from control.runs.cluster import session_name
from tests.project import EXHAUSTIVE, await_until

SHORT = ("config=task_cnn", "set=train.global_batch=20,train.steps=240,train.steps_per_epoch=120,train.steps_per_call=2")
"""So long that it still trains when the next command looks."""
NOTHING, BACK, ON = "This command started nothing", "The launch was taken back: none of its workers is running", "Training goes on: "


def after(seconds):
    """So long after Enter."""
    return lambda scene: time.monotonic() - scene.begun > seconds


def shown(text):
    """Once the command has printed this."""
    return lambda scene: text in scene.output.read_text()


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


MOMENTS = {
    "at once": (after(0.1), 0),
    "Ansible starts": (after(0.7), 0),
    "planning": (after(1.5), 0),
    "the plan": (shown("results "), 0),
    "after the plan": (shown("results "), 0.3),
    "looking": (shown("--- Look at the hosts"), 0.4),
    "distributing": (shown("--- Distribute"), 0),
    "after distributing": (shown("--- Distribute"), 0.3),
    "the launch": (shown("--- Launch"), 0),
    "launch + 0.1 s": (shown("--- Launch"), 0.1),
    "launch + 0.2 s": (shown("--- Launch"), 0.2),
    "launch + 0.4 s": (shown("--- Launch"), 0.4),
    "launch, any": (shown("--- Launch"), None),
    "launch, any again": (shown("--- Launch"), None),
    "the record": (recorded, 0),
    "record + 0.1 s": (recorded, 0.1),
    "one worker": (session(0), 0),
    "the other worker": (session(1), 0),
    "both workers": (lambda scene: session(0)(scene) and session(1)(scene), 0),
    "watching": (shown("--- Train"), 0),
    "watching + 0.5 s": (shown("--- Train"), 0.5),
    "joining": (joining, 0),
}
USUAL = ("planning", "the launch", "the record", "watching")


class Scene:
    """A training that is interrupted."""

    def __init__(self, project, name: str, pictures: Path, folder: Path):
        """Press Enter."""
        self.project, self.name, self.output = project, name, folder / "output"
        with self.output.open("w") as stream:
            argv = project.argv("train", f"run={name}", f"dataset={pictures}", *SHORT)
            settings = {"cwd": project.root, "env": project.environment(), "start_new_session": True}
            self.process = subprocess.Popen(argv, stdout=stream, stderr=subprocess.STDOUT, **settings)
        self.begun = time.monotonic()

    def interrupt(self) -> str:
        """Press Ctrl-C; gives what was printed in all."""
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(120)
        return self.output.read_text()

    def processes(self) -> dict[int, bytes]:
        """Trainers of the run, and what starts them: command lines by process id."""
        marks = [str(self.project.node(worker, self.name)).encode() for worker in (1, 2)]
        lines = {int(path.parent.name): _read(path) for path in Path("/proc").glob("[0-9]*/cmdline")}
        # The tmux server keeps the command line of the session that started it, perhaps for another copy's sessions.
        return {pid: line for pid, line in lines.items() if any(mark in line for mark in marks) and not line.startswith(b"tmux\0")}

    def claims(self) -> list[Path]:
        """Claims of the run."""
        return [path for path in self.project.root.glob(".lockstep/worker*/locks/*.json") if f'"{self.name}"' in path.read_text()]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def sessions(rank: int | None = None) -> str:
    """Names of the sessions there are."""
    done = subprocess.run(["tmux", "-L", "lockstep", "ls", "-F", "#{session_name}"], capture_output=True, text=True, check=False)
    return "\n".join(name for name in done.stdout.split() if rank is None or f"-w{rank}-" in name)


def last_word(output: str) -> str:
    """What the command said last of what goes on; empty when it was too early to say anything."""
    sentences = [word for word in (NOTHING, BACK, ON) if word in output]
    assert len(sentences) <= 1, output
    return sentences[0] if sentences else ""


@pytest.fixture(scope="module")
def ended(project):
    """Names of runs of which nothing may be left at the end: something that was on its way to a host could start late."""
    names: list[str] = []
    yield names
    left = [name for name in names if f"{name}-w" in sessions()]
    assert left == []


@pytest.mark.parametrize("moment", [pytest.param(moment, marks=() if moment in USUAL else EXHAUSTIVE) for moment in MOMENTS])
def test_after_ctrl_c_the_last_words_are_true_and_nothing_is_in_the_way(project, pictures, tmp_path, moment, ended):
    condition, delay = MOMENTS[moment]
    name = "cut-" + re.sub(r"[^a-z0-9]+", "-", moment.lower()).strip("-")
    scene = Scene(project, name, pictures, tmp_path)
    await_until(lambda: condition(scene) or scene.process.poll() is not None, 120, moment, every=0.005)
    time.sleep(random.Random(moment).uniform(0, 1.5) if delay is None else delay)
    assert scene.process.poll() is None, scene.output.read_text()
    output = scene.interrupt()
    word = last_word(output)
    print(f"\n| {moment} | {word or '(before the plan: no words)'} | {time.monotonic() - scene.begun:.1f} s |")
    if word == ON:
        done = project.play("train", f"run={name}")
        assert f"{name}: SUCCEEDED" in done.stdout
        assert (project.summary(name)["steps"], project.summary(name)["restarts"]) == (240, 0)
        return
    ended.append(name)
    assert word or moment in ("at once", "Ansible starts", "planning"), output
    assert f"{name}-w" not in sessions()
    assert scene.processes() == {}
    assert scene.claims() == []


def test_the_next_run_is_not_refused(project, pictures):
    done = project.play("train", "run=after-all", f"dataset={pictures}", *SHORT)
    assert "after-all: SUCCEEDED" in done.stdout


def launched_half(project, pictures, tmp_path, name) -> Scene:
    """A launch whose command was killed when one worker had been started: the other's tmux waits."""
    slow = tmp_path / "bin"
    slow.mkdir()
    (slow / "tmux").write_text(f'#!/bin/sh\ncase "$*" in *new-session*{name}-w1*) sleep 600;; esac\nPATH=${{PATH#*:}} exec tmux "$@"\n')
    (slow / "tmux").chmod(0o755)
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{slow}:{path}"
    try:
        scene = Scene(project, name, pictures, tmp_path)
    finally:
        os.environ["PATH"] = path
    await_until(lambda: session(0)(scene), 90, "one of two workers")
    return scene


def kill_hard(scene: Scene) -> None:
    """As the kernel does when memory is short: no process of the command says anything more."""
    members = [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if descends(int(entry.name), scene.process.pid)]
    for pid in [scene.process.pid, *members]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    scene.process.wait(10)


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


@pytest.mark.parametrize("following", ["the same run", pytest.param("another run", marks=EXHAUSTIVE)])
def test_a_launch_that_was_killed_half_way_is_put_right_by_the_next_command(project, pictures, tmp_path, following):
    name = f"half-{following.split()[0]}"
    scene = launched_half(project, pictures, tmp_path, name)
    kill_hard(scene)
    assert f"{name}-w" in sessions(0)
    status = project.play("status", f"run={name}").stdout
    assert f"{name}: RUNNING" in status
    assert re.search(r"1 +worker2 +not started", status)
    other = name if following == "the same run" else "after-half"
    done = project.play("train", f"run={other}", f"dataset={pictures}", *SHORT)
    assert f"run {name}: an interrupted launch was taken back; none of its workers is left" in done.stdout
    assert f"{other}: SUCCEEDED" in done.stdout
    assert f"{name}-w" not in sessions()


@EXHAUSTIVE
def test_stop_ends_a_launch_that_was_killed_half_way(project, pictures, tmp_path):
    scene = launched_half(project, pictures, tmp_path, "half-stopped")
    kill_hard(scene)
    project.play("stop", "run=half-stopped")
    assert "half-stopped-w" not in sessions()
    assert scene.claims() == []
    assert "interrupted" not in project.play("train", "--check", "run=any", f"dataset={pictures}", *SHORT).stdout


@EXHAUSTIVE
def test_ctrl_c_while_one_of_two_workers_is_started_takes_it_back(project, pictures, tmp_path):
    scene = launched_half(project, pictures, tmp_path, "half-cut")
    output = scene.interrupt()
    assert last_word(output) == BACK
    assert "half-cut-w" not in sessions()
    assert scene.claims() == []
    # What was killed takes a moment to be gone.
    await_until(lambda: not scene.processes(), 30, "the end of what was killed")
    # Nothing is fixed by a launch that never was: another configuration is welcome under the same name.
    done = project.play("train", "run=half-cut", f"dataset={pictures}", *SHORT[:1], SHORT[1] + ",optimizer.learning_rate=0.01")
    assert "half-cut: SUCCEEDED" in done.stdout


def test_sessions_of_the_chosen_names_are_those_of_the_project(project):
    assert session_name("cut", 0, "/x").startswith("cut-w0-")
