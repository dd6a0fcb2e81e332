"""Several lines of untrusted text, made safe for a terminal, and lines that fit it."""

import re
import textwrap

from trainer.common.safe_text import escaped

OURS = re.compile(r"(\r\x1b\[2K|\x1b\[[0-9;]{0,12}m)")
"""The only control sequences that Lockstep's commands write: redrawing a line, and colours."""

COLUMN = re.compile(r" {2,}(?=\S)")
PASTED = "ansible-playbook "
"""In lines that stay whole, so that they can be pasted."""


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


def wrapped(text: str, width: int | None) -> str:
    """Lines of at most `width` characters, broken between words and continued below their last column; None leaves them as they are."""
    return text if width is None else "\n".join(_wrapped(line, width) for line in text.split("\n"))


def _wrapped(line: str, width: int) -> str:
    if len(line) <= width or PASTED in line:
        return line
    begin = max([match.end() for match in COLUMN.finditer(line) if match.end() <= width // 2], default=0)
    rest = textwrap.wrap(line[begin:], width - begin, break_long_words=False, break_on_hyphens=False)
    return line[:begin] + f"\n{' ' * begin}".join(rest)
