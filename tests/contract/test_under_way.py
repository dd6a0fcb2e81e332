"""What is asked of a run that trains at this moment: it is watched, left, changed only once it is stopped, and stopped alone.

The tests follow one another: they are the life of one run, `left`, whose command came after one that was killed, and got Ctrl-C itself.
"""

import json
import re
import shutil
import subprocess

import pytest

from tests.contract.held import CHECKED, await_held
from tests.contract.scenes import ON, Scene, kill_hard, last_word, launched_half, sessions
from tests.local_project import LocalProject, all_sessions
from tests.project import EXHAUSTIVE, await_until

EPOCHS = "epochs=600"
SOMEBODY_ELSES = "left-w0-of-somebody-else"


@pytest.fixture(scope="module")
def half(project, pictures, tmp_path_factory) -> Scene:
    """A launch whose command was killed when it had started one of two workers."""
    scene = launched_half(project, pictures, tmp_path_factory.mktemp("half"), "half")
    kill_hard(scene)
    assert "half-w" in sessions(0)
    return scene


@pytest.fixture(scope="module")
def interrupted(project, pictures, tmp_path_factory, half) -> str:
    """Output of the next command, with Ctrl-C while its workers wait for each other; its run goes on."""
    scene = Scene(project, "left", pictures, tmp_path_factory.mktemp("left"), EPOCHS)
    output = scene.interrupt_at("joining")
    assert scene.process.returncode != 0
    return output


@pytest.fixture
def other_session():
    """A session with a name like a run's."""
    command = ["tmux", "-L", "lockstep"]
    subprocess.run([*command, "new-session", "-d", "-s", SOMEBODY_ELSES, "sleep", "600"], check=True)
    yield
    subprocess.run([*command, "kill-session", "-t", f"={SOMEBODY_ELSES}"], check=False)


def config_of(project: LocalProject, name: str) -> tuple[str, int]:
    """The configuration of a run, and the epochs that it trains to."""
    return (project.run(name) / "config.yml").read_text(), json.loads((project.run(name) / "cluster.json").read_text())["counts"]["epochs"]


def test_next_command_takes_back_a_half_killed_launch(interrupted, half):
    assert "run half: an interrupted launch was taken back; none of its workers is left" in interrupted
    assert "half-w" not in sessions()
    assert half.processes() == {}
    assert half.claims() == []


def test_ctrl_c_leaves_training_running_with_next_commands(project, interrupted):
    assert last_word(interrupted) == ON
    assert f"{ON}left" in interrupted
    for command in ("train.yml -e run=left", "status.yml -e run=left", "stop.yml -e run=left"):
        assert command in interrupted
    project.hold("left", 20)
    await_held(project, "left", 20)


def test_second_run_is_refused_with_fixes(project, pictures, interrupted):
    done = project.play("train", "run=second", f"dataset={pictures}", *CHECKED, check=False)
    assert done.returncode != 0
    assert re.search(rf"\[FAIL\] worker1 +port +run left is training on {project.ports[0]}", done.stdout), done.stdout
    for fix in ("ansible-playbook stop.yml -e run=left", "set another worker_port", "wait for it (-e queue=true does)"):
        assert fix in done.stdout
    assert not project.sessions("second")


def test_other_options_are_refused_and_change_nothing(project, interrupted):
    before = config_of(project, "left")
    typed = ("epochs=900", "set=train.time_limit=77", "workers=1")
    done = project.play("train", "run=left", *typed, check=False)
    assert done.returncode != 0, done.stdout
    assert "run=left is under way on worker1" in done.stdout
    assert "(epoch 3" in done.stdout
    assert "stop it (ansible-playbook stop.yml -e run=left), then continue it with the change: " in done.stdout
    assert f"change: ansible-playbook train.yml -e run=left -e {' -e '.join(typed)}\n" in done.stdout
    assert "steps " not in done.stdout.partition("training on")[0], "a plan that will not come true is not shown"
    assert "x 900 epochs" not in done.stdout
    for change in ("train.epochs=900 (it has 600)", "workers=1 (it has 2)"):
        assert change in done.stdout
    assert config_of(project, "left") == before


def test_same_command_again_watches_it(project, interrupted):
    watching = project.play("train", "run=left", EPOCHS, "detach=true").stdout
    assert "left is under way" in watching
    assert "x 600 epochs" in watching, "what it trains to is no change"


def test_run_under_way_is_not_deleted(project, interrupted):
    refused = project.play("playbooks/delete_run", "run=left", check=False)
    assert refused.returncode != 0
    assert "run=left is under way on worker1, worker2; stop it first" in refused.stdout
    assert project.run("left").is_dir()


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no SSH here")
def test_stop_names_the_host_that_it_cannot_reach(project, interrupted, other_session):
    """A stop reaches one of two workers, which takes the other with it, and no session of anybody else."""
    inventory = project.root / "inventory/local/hosts.yml"
    before = inventory.read_text()
    # Nobody listens there.
    away = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    inventory.write_text(before.replace("    worker2:\n", "    worker2:\n" + "".join(f"      {name}: {it}\n" for name, it in away.items())))
    try:
        done = project.play("stop", "run=left", check=False)
    finally:
        inventory.write_text(before)
    assert done.returncode != 0
    shown = " ".join(done.stdout.split())
    assert "worker2 can't be reached: its worker could not be stopped. Without the others its supervisor waits for the others" in shown
    assert "Fix: once it is back, look at it: ansible-playbook stop.yml -e run=left" in shown
    assert project.summary("left")["state"] == "CANCELLED"
    end = project.node(2, "left") / "workers/worker2/exit.json"
    await_until(end.is_file, 60, "the end of the other worker")
    assert json.loads(end.read_text())["exit_code"] == 42
    assert SOMEBODY_ELSES in all_sessions()
    await_until(lambda: not project.sessions("left"), 60, "the end of its sessions")


@EXHAUSTIVE("control/runs", "playbooks/stages", "stop.yml")
def test_stopped_run_is_continued_with_the_change(project, interrupted):
    again = project.play("stop", "run=left")
    assert "left was not running" in again.stdout
    assert "changed=0" in again.stdout
    steps = project.summary("left")["steps"]
    project.hold("left", steps + 10 & ~1)
    done = project.play("train", "run=left", "epochs=601", "detach=true")
    assert "x 601 epochs" in done.stdout
    await_held(project, "left", steps + 2)
    stopped = project.play("stop", "run=left")
    assert "left: CANCELLED" in stopped.stdout
    assert project.summary("left")["steps"] > steps
