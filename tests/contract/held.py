"""Trainings of two stub workers that wait in the middle, so that a test meets them at a step of its choice."""

import subprocess
from pathlib import Path

from tests.local_project import LocalProject
from tests.project import SLOWEST, await_during

SETTINGS = "train.global_batch=20,train.steps_per_call=2,reduction.name=packed"
CHECKED = ("config=task_cnn", f"set={SETTINGS}")
"""Eight steps per epoch; preflight checks the hosts first."""
SMALL = (*CHECKED, "preflight=false")
"""The same without preflight."""


def begin(project: LocalProject, pictures: Path, name: str, step: int, *more: str, how: tuple[str, ...] = SMALL) -> subprocess.Popen[str]:
    """Start a training; return once its workers wait before an even step, until `project.release`."""
    project.hold(name, step)
    playbook = project.start("train", f"run={name}", f"dataset={pictures}", *how, *more)
    await_held(project, name, step, playbook)
    return playbook


def await_held(project: LocalProject, name: str, step: int, playbook: subprocess.Popen | None = None) -> None:
    """Return once the workers of a run have recorded all steps before the one that they are held at; fail if the command ends before."""

    await_during(playbook, lambda: recorded(project, name) >= step, 90, f"{name} to reach step {step}")


def recorded(project: LocalProject, name: str) -> int:
    """Steps that both workers of a run have recorded."""
    return min(project.steps(worker, name) for worker in (1, 2))


def finish(playbook: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and output of a command, when it has ended."""
    output, _ = playbook.communicate(timeout=SLOWEST * 120)
    return playbook.returncode, output
