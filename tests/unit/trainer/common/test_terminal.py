"""Untrusted text is shown, never interpreted."""

import pytest

from control.common import terminal_lines
from trainer.common import safe_text

MOVED = "a\x1b[2K\rb"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Käse", "Käse"),
        (MOVED, "a\\x1b[2K\\rb"),
        ("a\nb", "a\\nb"),
        ("a\u202eb", "a\\u202eb"),
        ("a\x7fb", "a\\x7fb"),
        ("a\x9bb", "a\\x9bb"),
    ],
)
def test_a_line_has_no_control_characters(text, shown):
    assert safe_text.printable(text) == shown


def test_a_long_line_is_cut():
    assert safe_text.printable("é" * 30, 10) == "é" * 10 + "..."


def test_lines_keep_their_ends_and_tabs():
    assert terminal_lines.printable_lines(f"1\t2\n{MOVED}\n") == "1\t2\na\\x1b[2K\\rb\n"


def test_only_the_sequences_of_commands_are_kept():
    """They redraw a line and colour; others move the cursor or set the window's title."""
    assert terminal_lines.keeping_ours("\r\x1b[2K\x1b[1;32mdone\x1b[0m\n") == "\r\x1b[2K\x1b[1;32mdone\x1b[0m\n"
    assert terminal_lines.keeping_ours("\x1b[2A\x1b]0;title\x07") == "\\x1b[2A\\x1b]0;title\\x07"
