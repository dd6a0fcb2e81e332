"""Names that two commands want at once."""

import os
import subprocess

import pytest

from control.runs.launch import reservations
from tests.unit.refusals import refusal
from trainer.common.errors import LockstepError


@pytest.fixture(autouse=True)
def starting(tmp_path, monkeypatch):
    monkeypatch.setattr(reservations, "STARTING", tmp_path / "starting")
    return tmp_path


@pytest.fixture
def commands(monkeypatch):
    """Act as one of two commands that live: `commands(0)` or `commands(1)`; and end the last one."""
    living = [subprocess.Popen(["sleep", "infinity"]) for _ in range(2)]

    def act_as(number):
        monkeypatch.setattr(reservations.os, "getppid", lambda: living[number].pid)
        return living[number]

    yield act_as
    for one in living:
        one.kill()
        one.wait()


def test_one_of_two_commands_starts_a_run(commands):
    first = commands(0)
    reservations.reserve("r")
    reservations.reserve("r")
    commands(1)
    assert refusal(reservations.reserve, "r") == (
        f"run=r: another command (process {first.pid}) is starting it; nothing was changed.\n"
        "Fix: once its workers run, watch them: ansible-playbook train.yml -e run=r; or choose another run name"
    )
    # It reserved nothing, so it can't release it.
    reservations.release("r")
    with pytest.raises(LockstepError, match="another command"):
        reservations.refuse("r")


def test_name_is_free_once_workers_run(commands):
    commands(0)
    reservations.reserve("r")
    reservations.release("r")
    commands(1)
    reservations.refuse("r")
    reservations.reserve("r")


def test_name_is_free_once_its_command_ended(commands):
    ended = commands(0)
    reservations.reserve("r")
    ended.kill()
    ended.wait()
    commands(1)
    reservations.reserve("other")
    assert [file.name for file in reservations.STARTING.glob("*.json")] == ["other.json"]
    reservations.reserve("r")


def test_number_of_process_may_be_used_again(commands, monkeypatch):
    commands(0)
    reservations.reserve("r")
    monkeypatch.setattr(reservations, "identity", lambda pid: {"pid": pid, "began": "1", "boot": ""})
    reservations.reserve("r")


def test_names_of_one_second_differ(commands, tmp_path):
    commands(0)
    (tmp_path / "runs/cnn-1").mkdir(parents=True)
    names = [reservations.reserve_new("cnn-1", tmp_path / "runs")]
    commands(1)
    names.append(reservations.reserve_new("cnn-1", tmp_path / "runs"))
    assert names == ["cnn-1-2", "cnn-1-3"]
    assert os.listdir(tmp_path / "runs") == ["cnn-1"]
