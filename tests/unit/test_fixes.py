"""Commands that messages name: every `ansible-playbook ...` and every `-e name=value` in the sources is one that its own parser takes."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ansible.parsing.splitter import parse_kv

from control.common import command_line, configurations, operator_variables
from tests.project import ROOT
from trainer.config.schema import Config

SOURCES = ("control", "trainer", "plugins", "benchmarks")
GAP = "GAP"
"""In the place of what a message fills in."""
COMMAND = re.compile(r"ansible-playbook (?:-i \S+ )?((?:playbooks/|benchmarks/)?[\w-]+)\.yml((?: -e (?:'[^']*'|\"[^\"]*\"|[^\s,;:)]+))*)")
VARIABLE = re.compile(r"-e ('[^']*'|\"[^\"]*\"|[\w.]+=[^\s;:)]+)")


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each string; what is filled in is a `GAP`."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(part.value if isinstance(part, ast.Constant) else GAP for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


@cache
def messages() -> list[tuple[str, str]]:
    files = [file for folder in SOURCES for file in sorted((ROOT / folder).rglob("*.py"))]
    return [(f"{file.relative_to(ROOT)}:{line}", text) for file in files for line, text in texts(file)]


@cache
def keys() -> set[str]:
    """Keys of a configuration, and their sections."""
    every = set[str]()

    def add(section: dict[str, object], before: str) -> None:
        for name, value in section.items():
            every.add(before + name)
            if isinstance(value, dict):
                add(value, f"{before}{name}.")

    add(configurations.to_dict(Config()), "")
    return every


def names(typed: str) -> dict[str, str]:
    return {str(name): str(value) for word in shlex.split(typed) if word != "-e" for name, value in parse_kv(word).items()}


def test_each_command_takes_what_a_message_gives_it():
    wrong, inventory, seen = [], command_line.inventory_variables(), 0
    for place, text in messages():
        for command, typed in COMMAND.findall(text):
            if GAP in command:
                continue
            seen += 1
            if not (ROOT / f"{command}.yml").is_file():
                wrong.append(f"{place}: there is no {command}.yml")
                continue
            given = {name: value for name, value in names(typed).items() if GAP not in name}
            wrong += [
                f"{place}: {command}.yml takes no {name}"
                for name in given
                if name not in operator_variables.COMMANDS[command] and name not in inventory and name != "_raw_params"
            ]
    assert wrong == []
    assert seen > 100


def test_each_variable_that_a_message_names_is_taken():
    """And each key that it sets."""
    every = {name for taken in operator_variables.COMMANDS.values() for name in taken} | command_line.inventory_variables()
    given = [(place, typed) for place, text in messages() for typed in VARIABLE.findall(text)]
    taken = [(place, name) for place, typed in given for name in names(typed)]
    known = ("ansible_", "_raw_params")
    assert [one for one in taken if GAP not in one[1] and one[1] not in every and not one[1].startswith(known)] == []
    assert len(taken) > 100
    set_keys = [
        (place, key)
        for place, typed in given
        for key in re.findall(r"(?:^set=|,)([a-z_]+\.[a-z_.]+)=", typed.strip("'\""))
        if typed.strip("'\"").startswith("set=")
    ]
    assert [(place, key) for place, key in set_keys if not key.startswith("model.") and key not in keys()] == []
    assert len(set_keys) > 20


def test_commands_that_read_datasets_take_set():
    """What the message about unreadable images names."""
    reading = [command for command, taken in operator_variables.COMMANDS.items() if "dataset" in taken]
    assert [command for command in reading if "set" not in operator_variables.COMMANDS[command]] == []
