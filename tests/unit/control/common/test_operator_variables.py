"""Which variables a person may give with `-e` to which command."""

import re

import pytest

from control.common import command_line, project
from control.common.operator_variables import COMMANDS, check_variables
from tests.unit.refusals import refusal_of_typed
from trainer.common.errors import LockstepError

INVENTORY = {"worker_port", "dfs_path"}


def refusal(command, given):
    return refusal_of_typed(check_variables, command, given, INVENTORY)


def test_hosts_which_ansible_reserves_is_workers_here():
    assert "train.yml takes no such variable (did you mean workers?)" in refusal("train", {"hosts": "node1,node2"})


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_variable_of_a_command_is_taken(command):
    given = dict.fromkeys(COMMANDS[command], "x")
    assert check_variables(command, given, INVENTORY) == given


@pytest.mark.parametrize("name", ["worker_port", "dfs_path", "ansible_user", "ansible_ssh_common_args"])
def test_names_of_inventory_pass_but_are_no_options(name):
    assert check_variables("train", {name: "x", "run": "a"}, INVENTORY) == {"run": "a"}


def test_misspelt_name_shows_value_nearest_and_all_names():
    assert refusal("train", {"epoch_s": 5}) == (
        "-e epoch_s=5: train.yml takes no such variable (did you mean epochs?); "
        "it takes: run, config, model, weights, callbacks, dataset, workers, epochs, set, quick, detach, queue, time_limit, "
        "allow_bad_images, preflight, evaluate, timeline, show_config, remeasure, script, args, outputs."
    )


@pytest.mark.parametrize(
    ("command", "name", "hint"),
    [
        ("train", "optimizer.learning_rate", " (did you mean -e set=optimizer.learning_rate=VALUE?)"),
        ("train", "learning_rate", " (did you mean -e set=optimizer.learning_rate=VALUE?)"),
        ("train", "train.epochs", " (did you mean epochs?)"),
        ("report", "report.author", " (did you mean -e set=report.author=VALUE?)"),
        ("report", "optimizer.learning_rate", ""),
        ("stop", "learning_rate", ""),
    ],
)
def test_key_given_as_variable_names_set(command, name, hint):
    assert f"-e {name}=1: {command}.yml takes no such variable{hint}; it takes: " in refusal(command, {name: 1})


def test_a_name_like_no_other_has_no_hint():
    assert refusal("stop", {"zzz": 1}) == "-e zzz=1: stop.yml takes no such variable; it takes: run."


@pytest.mark.parametrize(
    ("command", "name", "where"),
    [
        ("train", "epoch", " It belongs to: evaluate.yml, export.yml, predict.yml."),
        ("train", "lines", " It belongs to: logs.yml."),
        ("evaluate", "epochs", " It belongs to: sweep.yml, train.yml."),
        ("status", "tensorboard_port", " It belongs to: tensorboard.yml."),
    ],
)
def test_name_of_another_command_says_where_it_belongs(command, name, where):
    assert refusal(command, {name: 1}).endswith(where)


def test_one_unknown_name_among_known_ones_is_enough():
    assert refusal("train", {"run": "a", "epochs": 1, "worker": 2}).startswith(
        "-e worker=2: train.yml takes no such variable (did you mean workers?)"
    )


def test_value_split_at_spaces_shows_how_to_quote():
    message = refusal("train", {"dataset": "my", "_raw_params": "pictures"})
    assert message.startswith("-e ... pictures: Ansible splits a value at spaces; ")
    assert message.endswith("as in -e 'dataset=\"my pictures\"'")


def test_the_page_lists_the_variables_of_every_command():
    page = (project.ROOT / "docs/reference/variables.md").read_text(encoding="utf-8")
    sections = {section.partition(".yml")[0]: re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) for section in page.split("\n## ")[1:]}
    assert sections == {command: names for command, names in COMMANDS.items() if command != "trial"}


def test_nothing_given():
    assert check_variables("train", {}, INVENTORY) == {}


def test_the_roles_variables_may_be_overridden():
    assert command_line.inventory_variables() >= {
        "worker_port",
        "worker_root",
        "distribute_whole",
        "dfs_path",
        "worker_address",
        "worker_role",
    }


def test_limit_is_refused_with_the_mend():
    with pytest.raises(LockstepError) as caught:
        command_line.operator_options("train", {"ansible_limit": "node01"})
    assert str(caught.value).startswith("--limit node01: a synchronous cluster waits for every worker")
    assert "-e workers=N" in str(caught.value)
