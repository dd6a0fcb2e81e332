"""The parts of a report, before it is Markdown or HTML.

In sentences, titles and cells a `name` between backticks is code; everything else is text, never markup.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+%?|-")


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    sentences: Sequence[str]

    @property
    def text(self) -> str:
        """The sentences, separated by spaces."""
        return " ".join(self.sentences)


@dataclass(frozen=True)
class Items:
    """A list."""

    kind: ClassVar[str] = "items"
    items: Sequence[str]


@dataclass(frozen=True)
class Table:
    """A table; its first column names the rows."""

    kind: ClassVar[str] = "table"
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers only."""
        return [all(NUMBER.fullmatch(row[column]) for row in self.rows) for column in range(len(self.header))]


@dataclass(frozen=True)
class Picture:
    """A PNG file beside the report."""

    kind: ClassVar[str] = "picture"
    file: str
    alt: str


@dataclass(frozen=True)
class Command:
    """A command for the user to type."""

    kind: ClassVar[str] = "command"
    text: str


@dataclass(frozen=True)
class File:
    """A file of a run, verbatim."""

    kind: ClassVar[str] = "file"
    name: str
    text: str


@dataclass(frozen=True)
class Markdown:
    """Another analysis's Markdown, with its headings moved below the section's and its pictures renamed as in this folder."""

    kind: ClassVar[str] = "markdown"
    text: str


Block = Text | Items | Table | Picture | Command | File | Markdown


@dataclass(frozen=True)
class Section:
    """A heading and what follows it."""

    title: str
    blocks: Sequence[Block] = field(default_factory=list)
    level: int = 2
