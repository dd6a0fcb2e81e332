"""Ctrl-C between Enter and the first step, as a terminal sends it: to every process of the group. The last words must be true.

While it trains: tests/contract/test_under_way.py.
"""

import json
import re

import pytest

from tests.contract.held import CHECKED, SETTINGS, SMALL
from tests.contract.scenes import BACK, CLAIM, EARLY, EPOCHS, MOMENTS, ON, Scene, kill_hard, last_word, launched_half, sessions
from tests.project import EXHAUSTIVE, await_until

USUAL = ("planning", "starting")


@pytest.fixture(scope="module")
def ended(project):
    """Names of runs of which nothing may be left at the end: something that was on its way to a host could start late."""
    names: list[str] = []
    yield names
    left = [name for name in names if f"{name}-w" in sessions()]
    assert left == []


@pytest.mark.parametrize("moment", [pytest.param(moment, marks=() if moment in USUAL else EXHAUSTIVE) for moment in MOMENTS])
def test_last_words_are_true_and_nothing_is_left(project, pictures, tmp_path, moment, ended):
    name = "cut-" + moment.replace(" ", "-")
    scene = Scene(project, name, pictures, tmp_path, how=(*CHECKED, "preflight=true") if moment == "looking" else SMALL)
    word = last_word(scene.interrupt_at(moment))
    if word == ON:
        goes_on(scene)
        return
    ended.append(name)
    assert word or moment in EARLY, scene.output.read_text()
    nothing_left(scene)


def test_ctrl_c_in_a_fork_takes_back(project, pictures, tmp_path):
    """Python drops what is raised there, and Ansible went on, with its processes killed."""
    scene = Scene(project, "cut-forking", pictures, tmp_path, forking=CLAIM)
    output = scene.ended()
    assert last_word(output) == BACK
    assert "User interrupted execution" in output
    nothing_left(scene)


def nothing_left(scene: Scene) -> None:
    """Of its launch, on any host."""
    assert f"{scene.name}-w" not in sessions()
    assert scene.processes() == {}
    assert scene.claims() == []


def goes_on(scene: Scene) -> None:
    """Its training ends well, with the launch that was interrupted."""
    scene.project.release(scene.name)
    summary = scene.project.node(1, scene.name) / "summary.json"
    await_until(lambda: summary.is_file() and not scene.processes(), 60, "the end of the training")
    ended = json.loads(summary.read_text())
    assert (ended["state"], ended["steps"], ended["restarts"]) == ("SUCCEEDED", 8, 0)


@EXHAUSTIVE
@pytest.mark.parametrize("following", ["the same run", "another run"])
def test_half_killed_launch_is_shown_and_trained_again(project, pictures, tmp_path, following):
    name = f"half-{following.split()[0]}"
    scene = launched_half(project, pictures, tmp_path, name)
    kill_hard(scene)
    other = name
    if following == "another run":
        other = "after"
        status = project.play("status", f"run={name}").stdout
        assert f"{name}: RUNNING" in status
        assert re.search(r"1 +worker2 +not started", status)
    project.release(name)
    done = project.play("train", f"run={other}", f"dataset={pictures}", *SMALL, EPOCHS)
    assert f"run {name}: an interrupted launch was taken back; none of its workers is left" in done.stdout
    assert f"{other}: SUCCEEDED" in done.stdout
    assert f"{name}-w" not in sessions()


@EXHAUSTIVE
def test_stop_ends_a_half_killed_launch(project, pictures, tmp_path):
    scene = launched_half(project, pictures, tmp_path, "half-stopped")
    kill_hard(scene)
    project.play("stop", "run=half-stopped")
    assert "half-stopped-w" not in sessions()
    assert scene.claims() == []
    assert "interrupted" not in project.play("train", "--check", "run=any", f"dataset={pictures}", *SMALL, EPOCHS).stdout


@EXHAUSTIVE
def test_ctrl_c_between_two_workers_takes_one_back(project, pictures, tmp_path):
    scene = launched_half(project, pictures, tmp_path, "half-cut")
    output = scene.interrupt()
    assert last_word(output) == BACK
    assert "half-cut-w" not in sessions()
    assert scene.claims() == []
    # What was killed takes a moment to be gone.
    await_until(lambda: not scene.processes(), 30, "the end of what was killed")
    # Nothing is fixed by a launch that never was: another configuration is welcome under the same name.
    project.release("half-cut")
    done = project.play("train", "run=half-cut", f"dataset={pictures}", *SMALL, f"set={SETTINGS},optimizer.learning_rate=0.01", EPOCHS)
    assert "half-cut: SUCCEEDED" in done.stdout
