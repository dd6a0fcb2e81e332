"""Every command through `ansible-playbook` itself: it is wired to its tasks, and prints what `tests/commands.py` says it does."""

import re

import pytest

from tests.commands import ROOT
from tests.contract import samples

REFUSED = {
    "doctor": ["epoch=3"],
    "evaluate": ["run=whole", "epoch=12"],
    "export": ["run=whole", "epoch=1,2"],
    "lab": ["nodes=none"],
    "logs": ["run=whole", "follow=perhaps"],
    "predict": ["run=whole"],
    "provision": ["state=gone"],
    "report": ["run=whoel"],
    "serve": ["run=whole"],
    "status": ["epoch=3"],
    "stop": ["epoch=3"],
    "sweep": ["epoch=3"],
    "tensorboard": ["run=whoel"],
    "train": ["epoch=3"],
    "playbooks/dataset": ["source=cifar100", "path=none"],
    "playbooks/delete_run": [],
    "playbooks/lab_slurm": ["state=gone"],
    "playbooks/slurm": ["time=no"],
    "playbooks/visualize": ["images=0"],
}
"""What each of them refuses."""


@pytest.fixture(scope="module")
def whole(commands, pictures):
    """A run that is there."""
    return samples.train(commands, "whole", "config=task_cnn", f"dataset={pictures}", "epochs=2")


def test_no_command_is_left_out():
    paths = [*ROOT.glob("*.yml"), *(ROOT / "playbooks").glob("*.yml")]
    assert sorted(str(path.relative_to(ROOT).with_suffix("")) for path in paths) == sorted(REFUSED)


@pytest.mark.parametrize("command", REFUSED)
def test_a_command_prints_what_its_tasks_say(command, commands, whole):
    done = commands.play(command, *REFUSED[command], check=False)
    refused = commands.refusal(command, *REFUSED[command])
    assert re.sub(r"\n+PLAY RECAP.*", "", done.stdout, flags=re.DOTALL).rstrip() == refused
    assert done.returncode == 2


def test_a_check_prints_what_its_tasks_say(commands, pictures):
    """Ports and the name's time are drawn."""
    given = ("run=planned", "config=task_cnn", f"dataset={pictures}", "epochs=3", "show_config=true")
    done = commands.play("train", "--check", *given)
    shown = commands.check("train", *given)
    assert re.sub(r"\n+PLAY RECAP.*", "", done.stdout, flags=re.DOTALL).rstrip() == shown
