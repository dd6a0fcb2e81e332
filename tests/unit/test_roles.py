"""The roles' variables: the same in defaults and argument specification, and to be found from the README."""

from pathlib import Path

import pytest
import yaml

from control.common.operator_variables import COMMANDS

ROLES = sorted(path for path in (Path(__file__).resolve().parents[2] / "roles").iterdir() if path.is_dir())


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def options(role):
    return read(role / "meta" / "argument_specs.yml")["argument_specs"]["main"]["options"]


def name(role):
    return role.name


def test_there_are_roles():
    assert {role.name for role in ROLES} >= {"worker", "distribute"}


@pytest.mark.parametrize("role", ROLES, ids=name)
def test_defaults_are_those_of_the_argument_specification(role):
    optional = {key: option["default"] for key, option in options(role).items() if not option.get("required")}
    assert read(role / "defaults" / "main.yml") == optional


@pytest.mark.parametrize("role", ROLES, ids=name)
def test_every_variable_is_described_with_its_roles_name(role):
    kinds = {"path": object, "str": object, "int": int, "float": int | float, "bool": bool, "list": object, "dict": object}
    for key, option in options(role).items():
        assert key.startswith(f"{role.name}_")
        assert option["description"].endswith(".")
        assert option.get("required") or isinstance(option["default"], kinds[option["type"]]), key
    text = (role / "README.md").read_text(encoding="utf-8")
    assert "(defaults/main.yml)" in text
    assert "(meta/argument_specs.yml)" in text


@pytest.mark.parametrize("role", ROLES, ids=name)
def test_no_role_variable_is_an_operator_variable_too(role):
    assert not set(options(role)) & {variable for names in COMMANDS.values() for variable in names}
