"""Makes untrusted text safe for a terminal: text from a node, a file or a name is shown, never interpreted."""

import re

LINE = 2000
"""Characters shown of an untrusted line."""
OURS = re.compile(r"(\r\x1b\[2K|\x1b\[[0-9;]{0,12}m)")
"""The only control sequences that Lockstep's commands write: redrawing a line, and colours."""


def printable(text: object, limit: int = LINE) -> str:
    """Text as one line: characters that move the cursor, change colour or direction, or end the line appear as Python escapes."""
    cut = str(text)
    cut = cut if len(cut) <= limit else f"{cut[:limit]}..."
    return cut if cut.isprintable() else "".join(_shown(character) for character in cut)


def printable_lines(text: str) -> str:
    """Several lines, each shown as by `printable` but at any length; tabs stay."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(character if character in "\n\t" else _shown(character) for character in text)


def keeping_ours(text: str) -> str:
    """As `printable_lines`, but keeps the control sequences of Lockstep's commands."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(part if OURS.fullmatch(part) else printable_lines(part) for part in OURS.split(text))


def _shown(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
