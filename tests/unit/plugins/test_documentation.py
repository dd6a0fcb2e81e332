"""The modules' documentation, which is also the specification of their arguments."""

import ast

import pytest
import yaml

from control.remote.answers import COMMON
from tests.unit.conftest import ROOT

MODULES = sorted((ROOT / "plugins" / "modules").glob("*.py"))
UNDERSTOOD = ("required", "default", "choices", "elements")
"""What the stand-in for Ansible's class on a host does with an option, beside its type."""


def read(path):
    """A module's documentation blocks."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    blocks = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign)}
    return {name: yaml.safe_load(blocks[name].value) for name in ("DOCUMENTATION", "RETURN")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_option_is_described_and_can_be_read(path):
    documentation = read(path)["DOCUMENTATION"]
    assert {"module", "short_description", "description"} <= documentation.keys()
    for name, option in documentation["options"].items():
        assert option["description"]
        assert {"type"} <= option.keys() <= {"type", "description", *UNDERSTOOD}, name
        assert not (option.get("required") and "default" in option), name
        assert "default" not in option or option["default"] in option.get("choices", [option["default"]]), name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_returned_field_is_described(path):
    """What RETURN does not name is refused as a forged answer."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    ends = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in ("exit_json", "fail_json", "end")]
    returned = {keyword.arg for call in ends for keyword in call.keywords if keyword.arg}
    assert ends
    assert all({"description", "returned", "type"} <= result.keys() for result in read(path)["RETURN"].values())
    assert returned <= {*COMMON, *read(path)["RETURN"]}
