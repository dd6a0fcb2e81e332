"""docs/concepts/security.md: every claim names tests, and these exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/concepts/security.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## What is tested\n")[2].partition("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.splitlines() if line.startswith("| ")][2:]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
ATTACKS = ("tests/lab/test_attacks.py", "tests/lab/test_intruders.py", "tests/contract/test_attacks.py")
ATTACKS += ("tests/contract/test_hostile_node.py", "tests/contract/test_hostile_host.py")
ATTACKS += ("tests/unit/control/runs/hosts/test_hostile_names.py", "tests/unit/trainer/evaluation/test_hostile_snapshot.py")


def attacks_in(file: str) -> set[str]:
    """Names of the tests in a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_there_is_a_table():
    assert len(ROWS) > 10
    assert all(len(row) == 2 for row in ROWS)


@pytest.mark.parametrize(("claim", "tests"), ROWS, ids=[row[0][:40] for row in ROWS])
def test_a_claim_names_tests_that_exist(claim, tests):
    named = NAMED.findall(tests)
    assert named, claim
    assert tests == ", ".join(f"`{file}::{name}`" for file, name in named), "nothing else is in that cell"
    assert {name for file, name in named if name not in attacks_in(file)} == set()


def test_every_file_of_attacks_is_named():
    assert {file for _, tests in ROWS for file, _ in NAMED.findall(tests)} >= set(ATTACKS)
