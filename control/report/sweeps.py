"""A sweep's own analysis as a section of a report."""

import re
from pathlib import Path

from control.report.blocks import Block, Markdown, Picture, Section, Text, code

HEADING = re.compile(r"(#{1,6})(?=\s)")
LOCAL_PICTURE = re.compile(r"(!\[[^\]]*\]\()([^)/\s]+\.png)(\))")
SENTENCE_END = re.compile(r"(?<=[.!?])\s")
FENCE = ("```", "~~~")


def section(folder: Path) -> Section:
    """analysis.md and the sweep's pictures, or the command that makes them."""
    path, text = folder / "analysis.md", ""
    again = code(f"ansible-playbook sweep.yml -e sweep={folder.name} -e measure=false")
    block: Block = Text([f"There is no analysis.md of this sweep yet; {again} writes it."])
    if path.is_file():
        text = _demoted(_without_title(path.read_text(encoding="utf-8")), 3)
        text = LOCAL_PICTURE.sub(lambda link: link[1] + copied(folder / link[2]) + link[3], text)
        block = Markdown(text)
    rest = [path for path in pictures(folder) if copied(path) not in text]
    drawn = [Picture(copied(path), f"Picture of the sweep: {path.stem.replace('_', ' ')}.") for path in rest]
    return Section(f"Sweep {code(folder.name)}", [block, *drawn])


def short(folder: Path) -> list[str]:
    """The first sentence of analysis.md: its answer."""
    path = folder / "analysis.md"
    paragraphs = _without_title(path.read_text(encoding="utf-8")).split("\n\n") if path.is_file() else []
    answer = next((paragraph.strip() for paragraph in paragraphs if paragraph.strip()), "")
    return [SENTENCE_END.split(answer)[0].replace("**", "")] if answer else []


def pictures(folder: Path) -> list[Path]:
    """The sweep's PNG files."""
    return sorted(folder.glob("*.png"))


def copied(picture: Path) -> str:
    """Name of a sweep's picture beside the report."""
    return f"pictures/sweep-{picture.parent.name}-{picture.name}"


def _without_title(markdown: str) -> str:
    """Markdown without its leading first-level heading; a report has its own."""
    title, _, rest = markdown.lstrip().partition("\n")
    return rest if title.startswith("# ") else markdown


def _demoted(markdown: str, level: int) -> str:
    """Markdown with its highest headings moved to `level` and the others with them; code fences are left alone."""
    lines, fenced, headings = markdown.splitlines(), False, []
    for number, line in enumerate(lines):
        if line.startswith(FENCE):
            fenced = not fenced
        elif not fenced and (heading := HEADING.match(line)):
            headings.append((number, len(heading[1])))
    shift = level - min((depth for _, depth in headings), default=level)
    for number, depth in headings:
        lines[number] = "#" * min(6, max(1, depth + shift)) + lines[number][depth:]
    return "\n".join(lines).strip() + "\n"
