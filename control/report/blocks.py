"""The parts of a report, independent of Markdown and HTML, and the words of its sentences.

In sentences, titles and cells a `name` between backticks is code; everything else is text, never markup.
"""

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+%?|-")


class Block:
    """A part of a section."""

    @property
    def kind(self) -> str:
        """Kind of the block, by which templates choose: `text`, `table`, ..."""
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Text(Block):
    """A paragraph."""

    sentences: Sequence[str]

    @property
    def text(self) -> str:
        """The sentences, separated by spaces."""
        return " ".join(self.sentences)


@dataclass(frozen=True)
class Table(Block):
    """A table; its first column names the rows."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def numeric(self) -> list[bool]:
        """Flags by column: True if all cells are numbers."""
        return [all(NUMBER.fullmatch(row[column]) for row in self.rows) for column in range(len(self.header))]


@dataclass(frozen=True)
class Picture(Block):
    """A PNG file beside the report."""

    file: str
    alt: str


@dataclass(frozen=True)
class Command(Block):
    """Commands for the user to type, one a line."""

    text: str
    here: bool = True
    """True if the commands are for this machine, with its inventory."""


@dataclass(frozen=True)
class Link(Block):
    """An address and the words before it."""

    words: str
    address: str

    @property
    def is_web(self) -> bool:
        """True if a browser opens the address."""
        return self.address.startswith(("https://", "http://"))


@dataclass(frozen=True)
class Gallery(Block):
    """Small pictures beside the report, each with a line below."""

    caption: str
    pictures: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class File(Block):
    """A file of a run, verbatim."""

    name: str
    text: str


@dataclass(frozen=True)
class Markdown(Block):
    """Markdown of another analysis, with headings moved below the section's and pictures renamed as in this folder."""

    text: str


@dataclass(frozen=True)
class Section:
    """A heading and its blocks."""

    title: str
    blocks: Sequence[Block] = field(default_factory=list)
    level: int = 2


def percent(share: float) -> str:
    """`0.58561` as `58.56%`."""
    return f"{share:.2%}"


def points(difference: float) -> str:
    """A difference of two shares in percentage points: `0.0104` as `1.04 points`."""
    return f"{abs(difference) * 100:.2f} points"


def spent(seconds: float) -> str:
    """`95 s`, `3 min 2 s`, `1 h 12 min`."""
    rounded = int(seconds + 0.5)
    if rounded < 120:
        return f"{rounded} s"
    minutes, rest = divmod(rounded, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def moment(iso: str) -> str:
    """`2026-11-21T05:26:16+00:00` as `2026-11-21 05:26 UTC`."""
    return datetime.datetime.fromisoformat(iso).astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def code(value: Any) -> str:
    """A name or a command, set as code in every form of the report."""
    return "`" + str(value).replace("`", "'").replace("\n", " ") + "`"


def plain(value: Any) -> str:
    """A foreign name in a sentence: its backticks do not begin code."""
    return str(value).replace("`", "'")
