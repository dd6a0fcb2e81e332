"""Makes untrusted text safe for a terminal: text from a node, a file or a name is shown, never interpreted."""

LINE = 2000
"""Characters shown of an untrusted line."""


def printable(text: object, limit: int = LINE) -> str:
    """Text as one line: characters that move the cursor, change colour or direction, or end the line appear as Python escapes."""
    cut = str(text)
    cut = cut if len(cut) <= limit else f"{cut[:limit]}..."
    return cut if cut.isprintable() else "".join(escaped(character) for character in cut)


def escaped(character: str) -> str:
    """A character that moves the cursor or the like, as a Python escape."""
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
