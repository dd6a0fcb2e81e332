"""The modules' documentation: every option as in its argument specification."""

import ast

import pytest
import yaml

from control.remote.answers import COMMON
from tests.unit.conftest import ROOT

MODULES = sorted((ROOT / "plugins" / "modules").glob("*.py"))


def read(path):
    """A module's documentation blocks and its argument specification; values that are no literals are None."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    blocks = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign)}
    specification = next(node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "argument_spec")
    options = {name.value: option for name, option in zip(specification.keys, specification.values, strict=True)}
    literals = {name: dict(zip([key.value for key in node.keys], map(literal, node.values), strict=True)) for name, node in options.items()}
    return {name: yaml.safe_load(blocks[name].value) for name in ("DOCUMENTATION", "EXAMPLES", "RETURN")}, literals


def literal(node):
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_option_is_described_as_it_is_specified(path):
    blocks, options = read(path)
    assert {"module", "short_description", "description"} <= blocks["DOCUMENTATION"].keys()
    documented = blocks["DOCUMENTATION"]["options"]
    assert documented.keys() == options.keys()
    for name, option in options.items():
        assert documented[name].pop("description")
        assert documented[name].keys() <= option.keys(), name
        for key, value in option.items():
            assert value is None or documented[name].get(key) == value, (name, key)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_examples_and_results_are_complete(path):
    blocks, options = read(path)
    assert all(task[path.stem].keys() <= options.keys() for task in blocks["EXAMPLES"])
    assert all({"description", "returned", "type"} <= result.keys() for result in blocks["RETURN"].values())


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_returned_field_is_described(path):
    """What RETURN does not name is refused as a forged answer."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    ends = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in ("exit_json", "fail_json")]
    returned = {keyword.arg for call in ends for keyword in call.keywords if keyword.arg}
    assert ends
    assert returned <= {*COMMON, *read(path)[0]["RETURN"]}
