"""Pages of the documentation: their code, and their prose by section."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.project import ROOT

FENCE = "```"
INLINE = re.compile(r"`([^`]+)`")
HEADING = re.compile(r"(#+) (.*)")
INDENT = " " * 4


@dataclass
class Section:
    """A heading and what stands below it, up to the next heading."""

    title: str
    depth: int
    prose: list[str] = field(default_factory=list)
    """Lines that are no code; code inside of lines is left out."""
    code: list[str] = field(default_factory=list)
    """Lines of fenced and indented blocks, then code inside of lines."""


def pages() -> list[Path]:
    """README.md, docs/, and the pages of the benchmarks."""
    apart = [ROOT / "benchmarks/README.md", ROOT / "benchmarks/peers/README.md"]
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *apart]


def sections(text: str) -> list[Section]:
    """The sections of a page; the first is what stands above its first heading."""
    found = [Section("", 0)]
    for line, is_code in _lines(text):
        heading = None if is_code else HEADING.fullmatch(line)
        if heading:
            found.append(Section(heading[2], len(heading[1])))
        elif is_code:
            found[-1].code.append(line)
        else:
            found[-1].code += INLINE.findall(line)
            found[-1].prose.append(INLINE.sub("", line))
    return found


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it is code; an indented block begins after an empty line."""
    fenced, before, was_code = False, "", False
    for line in text.splitlines():
        if line.startswith(FENCE):
            fenced = not fenced
            continue
        was_code = fenced or (line.startswith(INDENT) and (was_code or not before))
        yield line, was_code
        before = line.strip()
