"""What is asked of a run that trains at this moment: it is watched as it is, or the command is refused."""

import json
import re
import shutil
import time

import pytest

from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE, await_until

SMALL = "set=train.global_batch=20,train.steps_per_call=1,optimizer.learning_rate=0.005,reduction.name=packed"


@pytest.fixture
def running(project, pictures):
    """A run of two workers that trains to epoch 600, more than it can reach here; stopped afterwards."""
    project.play("train", "run=endless", "config=task_cnn", f"dataset={pictures}", SMALL, "epochs=600", "detach=true")
    await_until(lambda: project.steps(1, "endless") >= 1, 60, "a step")
    yield "endless"
    project.play("stop", "run=endless")


def config_of(project: LocalProject, name: str) -> tuple[str, int]:
    return (project.run(name) / "config.yml").read_text(), json.loads((project.run(name) / "cluster.json").read_text())["counts"]["epochs"]


def test_other_options_for_a_run_that_trains_are_refused_and_change_nothing(project, running):
    before, refused = config_of(project, running), {}
    for typed in ("epochs=900", "set=train.time_limit=77", "workers=1"):
        done = project.play("train", f"run={running}", typed, check=False, timeout=90)
        assert done.returncode != 0, done.stdout
        refused[typed] = done.stdout
    for typed, shown in refused.items():
        assert "run=endless is under way on worker1" in shown, shown
        assert "(epoch " in shown
        assert "stop it (ansible-playbook stop.yml -e run=endless), then continue it with the change: " in shown
        assert f"change: ansible-playbook train.yml -e run=endless -e {typed}\n" in shown
        assert "steps " not in shown.partition("training on")[0], "a plan that will not come true is not shown"
    assert "train.epochs=900 (it has 600)" in refused["epochs=900"]
    assert "x 900 epochs" not in refused["epochs=900"]
    assert "workers=1 (it has 2)" in refused["workers=1"]
    assert config_of(project, running) == before
    assert "x 600 epochs" in project.play("train", f"run={running}", "epochs=600", "detach=true").stdout, "what it trains to is no change"


def test_it_is_continued_with_the_change_once_it_is_stopped(project, running):
    project.play("stop", f"run={running}")
    steps = project.summary(running)["steps"]
    done = project.play("train", f"run={running}", "epochs=601", "detach=true")
    assert "x 601 epochs" in done.stdout
    assert project.summary(running)["steps"] >= steps


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no SSH here")
def test_a_stop_ends_the_workers_that_it_can_reach_and_names_the_host_that_is_away(project, running):
    inventory = project.root / "inventory" / "local" / "hosts.yml"
    before = inventory.read_text()
    # Nobody listens there.
    away = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    inventory.write_text(before.replace("    worker2:\n", "    worker2:\n" + "".join(f"      {name}: {it}\n" for name, it in away.items())))
    try:
        done = project.play("stop", f"run={running}", check=False)
    finally:
        inventory.write_text(before)
    assert done.returncode != 0
    shown = " ".join(done.stdout.split())
    assert "worker2 can't be reached: its worker could not be stopped. Without the others its supervisor waits for the others" in shown
    assert "Fix: once it is back, look at it: ansible-playbook stop.yml -e run=endless" in shown
    assert project.summary(running)["state"] == "CANCELLED"
    # Its worker agreed with the one that was asked.
    end = project.node(2, running) / "workers" / "worker2" / "exit.json"
    await_until(end.is_file, 60, "the end of the other worker")
    assert json.loads(end.read_text())["exit_code"] == 42


def seconds(shown: str) -> int:
    """`1:15` as 75."""
    minutes, rest = shown.split(":")
    return int(minutes) * 60 + int(rest)


@EXHAUSTIVE
def test_the_time_that_is_told_is_the_shells(project, pictures):
    options = ("run=timed", "config=task_cnn", f"dataset={pictures}", SMALL)
    begun = time.monotonic()
    done = project.play("train", *options, "epochs=2")
    by_the_clock = time.monotonic() - begun
    shown = re.search(r"time +(\S+) from Enter to this result, (\S+) of it training with .* \((\S+) before, (\S+) after\)", done.stdout)
    assert shown, done.stdout
    whole, *parts = map(seconds, shown.groups())
    # Python and Ansible take a moment to start and to end, on a busy machine seconds.
    assert abs(whole - by_the_clock) <= 5
    assert abs(sum(parts) - whole) <= 2
    launch = project.summary("timed")["launch"]
    assert launch["seconds_training"] < launch["seconds_from_enter"] <= by_the_clock
    assert done.stdout.count("Next\n") == 1

    detached = project.play("train", *options, "epochs=40", "detach=true")
    assert detached.stdout.count("Next\n") == 1, detached.stdout
    again = project.play("train", "run=timed")
    assert re.search(r"time +\S+ from Enter to the end of the last worker, .*; all 2 launches trained ", again.stdout), again.stdout
