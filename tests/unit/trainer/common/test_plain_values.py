"""Dataclasses as plain values: what travels comes back equal, and typed at any depth."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from trainer.common.plain_values import from_plain, to_plain


@dataclass(frozen=True)
class Leaf:
    """A value that leaves out defaults."""

    ALWAYS: ClassVar = ("name",)
    name: str = ""
    numbers: Sequence[int] = ()


@dataclass(frozen=True)
class Tree:
    """A value that has others."""

    place: Path
    first: Leaf
    leaves: Sequence[Leaf] = ()
    by_name: Mapping[str, Leaf] = field(default_factory=dict)
    chosen: int | str | None = None


PLAIN = {"place": "/x", "first": {"name": ""}, "leaves": [{"name": "a", "numbers": [1]}], "by_name": {"b": {"name": "b"}}, "chosen": None}
TREE = Tree(Path("/x"), Leaf(), [Leaf("a", [1])], {"b": Leaf("b")})


def test_dataclasses_become_plain_at_any_depth():
    assert to_plain({"trees": (TREE,)}) == {"trees": [PLAIN]}
    assert json.loads(json.dumps(to_plain(TREE))) == PLAIN


@pytest.mark.parametrize("more", [{}, {"of another version": 1}])
def test_plain_values_become_typed_again(more):
    assert from_plain(Tree, PLAIN | more) == TREE
