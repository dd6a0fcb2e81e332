"""A sweep's own analysis as a section of a report."""

import re
from dataclasses import dataclass
from pathlib import Path

from control.report.blocks import Block, Markdown, Picture, Section, Text, code

HEADING = re.compile(r"(#{1,6})(?=\s)")
LOCAL_PICTURE = re.compile(r"(!\[[^\]]*\]\()([^)/\s]+\.png)(\))")
SENTENCE_END = re.compile(r"(?<=[.!?])\s")
FENCE = ("```", "~~~")


@dataclass(frozen=True)
class SweepAnalysis:
    """A sweep's own analysis and pictures, for a report."""

    folder: Path

    @property
    def _markdown(self) -> str | None:
        """analysis.md without its title; None if there is none."""
        path = self.folder / "analysis.md"
        return _without_title(path.read_text(encoding="utf-8")) if path.is_file() else None

    @property
    def pictures(self) -> dict[str, Path]:
        """The sweep's PNG files, by name beside the report."""
        return {self._beside(path.name): path for path in sorted(self.folder.glob("*.png"))}

    def _beside(self, name: str) -> str:
        return f"pictures/sweep-{self.folder.name}-{name}"

    @property
    def section(self) -> Section:
        """analysis.md and the sweep's pictures, or the command that makes them."""
        again = code(f"ansible-playbook sweep.yml -e sweep={self.folder.name} -e measure=false")
        block: Block = Text([f"There is no analysis.md of this sweep yet; {again} writes it."])
        text = ""
        if self._markdown is not None:
            text = LOCAL_PICTURE.sub(lambda link: link[1] + self._beside(link[2]) + link[3], _demoted(self._markdown, 3))
            block = Markdown(text)
        rest = {name: path for name, path in self.pictures.items() if name not in text}
        drawn = [Picture(name, f"Picture of the sweep: {path.stem.replace('_', ' ')}.") for name, path in rest.items()]
        return Section(f"Sweep {code(self.folder.name)}", [block, *drawn])

    @property
    def short(self) -> list[str]:
        """The first sentence of analysis.md: its answer."""
        answer = next((paragraph.strip() for paragraph in (self._markdown or "").split("\n\n") if paragraph.strip()), "")
        return [SENTENCE_END.split(answer)[0].replace("**", "")] if answer else []


def _without_title(markdown: str) -> str:
    """Markdown without its leading first-level heading; a report has its own."""
    title, _, rest = markdown.lstrip().partition("\n")
    return rest if title.startswith("# ") else markdown


def _demoted(markdown: str, level: int) -> str:
    """Markdown with its highest headings moved to `level`, and lower headings accordingly; code fences stay unchanged."""
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
