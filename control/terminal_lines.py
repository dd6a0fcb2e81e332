"""Several lines of untrusted text, made safe for a terminal."""

import re

from trainer.terminal import escaped

OURS = re.compile(r"(\r\x1b\[2K|\x1b\[[0-9;]{0,12}m)")
"""The only control sequences that Lockstep's commands write: redrawing a line, and colours."""


def printable_lines(text: str) -> str:
    """Several lines, each shown as by `printable` but at any length; tabs stay."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(character if character in "\n\t" else escaped(character) for character in text)


def keeping_ours(text: str) -> str:
    """As `printable_lines`, but keeps the control sequences of Lockstep's commands."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(part if OURS.fullmatch(part) else printable_lines(part) for part in OURS.split(text))
