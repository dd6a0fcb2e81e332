"""The check of docstrings' openings."""

import pytest

from tests import prose


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ('"""What a worker records."""', [(1, "What a worker records.")]),
        ('def owns():\n    """Whether\n    a file is ours."""', [(2, "Whether")]),
        ('class Call:\n    rank: int\n    """Of the worker."""', [(3, "Of the worker.")]),
        ('LIMIT = 3\n"""The same for a script, seconds."""', [(2, "The same for a script, seconds.")]),
    ],
)
def test_a_banned_opening_is_listed(text, listed):
    assert prose.refused(text) == listed


@pytest.mark.parametrize(
    "text",
    ['"""Records of a worker."""', '"""Offset, seconds."""', 'def owns():\n    """Return whether a file is ours."""', 'print("Whether")'],
)
def test_a_noun_or_an_imperative_passes(text):
    assert prose.refused(text) == []
