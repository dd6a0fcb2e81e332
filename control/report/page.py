"""The blocks of a report as Markdown and as one self-contained HTML page. Pure except for reading templates and pictures."""

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import markdown  # type: ignore[import-untyped]
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from control.report.blocks import Section

SPECIAL = re.compile(r"([\\*\[\]|<>~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
SOURCE = re.compile(r'<img [^>]*src="((?:pictures/)?[^"/:]+\.png)"[^>]*>')
ALT = re.compile(r'alt="([^"]*)"')
PNG = "data:image/png;base64,"


@dataclass(frozen=True)
class Report:
    """The content of a report, for both forms."""

    title: str
    author: str
    """Name of the author; empty if nobody is named."""
    short: Sequence[str]
    """The summary, in a few sentences."""
    sections: Sequence[Section]


@dataclass(frozen=True)
class Renderer:
    """Writes a report in both forms."""

    templates: Path
    """Folder of report.md.j2 and report.html.j2."""
    typed: Callable[[str], str] = str
    """Applied to a command before it is shown: adds the user's inventory."""

    def readme(self, report: Report) -> str:
        """Markdown; pictures are files beside it."""
        page = self._environment(False).get_template("report.md.j2").render(report=report)
        return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"

    def page(self, report: Report, pictures: Path) -> str:
        """HTML; pictures are read from a folder and embedded."""
        environment = self._environment(True)
        environment.filters["data_uri"] = lambda name: _data_uri(pictures / name)
        environment.filters["shown"] = lambda picture: Markup(picture_html(picture.file, escape(picture.alt.replace("`", "")), pictures))  # noqa: S704
        environment.filters["markdown"] = lambda text: Markup(_from_markdown(text, pictures))  # noqa: S704 - escapes what it is given
        return environment.get_template("report.html.j2").render(report=report) + "\n"

    def _environment(self, html: bool) -> Environment:
        # Markdown has its own escaping: every text passes through `inline`.
        environment = Environment(
            loader=FileSystemLoader(self.templates),
            autoescape=html,  # noqa: S701
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters |= {"inline": self._html if html else self._markdown, "typed": self.typed, "csp_digest": _csp_digest}
        return environment

    def _html(self, text: str) -> Markup:
        return Markup("").join(
            Markup("<code>{}</code>").format(self.typed(part)) if is_code else escape(part) for is_code, part in _spans(text)
        )

    def _markdown(self, text: str, cell: bool = False) -> str:
        parts = (f"`{self.typed(part)}`" if is_code else _escaped(part) for is_code, part in _spans(text))
        return "".join(part.replace("|", "\\|") if cell and part.startswith("`") else part for part in parts)


def _spans(text: str) -> Iterator[tuple[bool, str]]:
    """Parts of a sentence as pairs: True for code, and the words. An unpaired backtick is text."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        parts[-2:] = ["`".join(parts[-2:])]
    for number, part in enumerate(parts):
        if part:
            yield number % 2 == 1, part


def _escaped(text: str) -> str:
    """The text with escapes, so that Markdown shows it literally: without emphasis, links, tables or tags."""
    return SPECIAL.sub(r"\\\1", text.replace("&", "&amp;").replace("`", "'"))


def _data_uri(path: Path) -> str:
    """A PNG file as a data URI."""
    return PNG + base64.b64encode(path.read_bytes()).decode()


def dark(file: str) -> str:
    """Name of a picture's variant for dark pages."""
    return f"{file.removesuffix('.png')}-dark.png"


def picture_html(file: str, alt: str, pictures: Path) -> str:
    """HTML of a picture that is embedded, with its dark variant if there is one; `alt` is HTML."""
    image = f'<img src="{_data_uri(pictures / file)}" alt="{alt}">'
    if not (pictures / dark(file)).is_file():
        return image
    # On paper the page is light.
    source = f'<source media="screen and (prefers-color-scheme: dark)" srcset="{_data_uri(pictures / dark(file))}">'
    return f"<picture>{source}{image}</picture>"


def _csp_digest(style: str) -> str:
    """The digest by which a Content-Security-Policy allows this style sheet and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(str(style).encode()).digest()).decode()


def _from_markdown(text: str, pictures: Path) -> str:
    """HTML of an analysis in Markdown: tags stay text, tables are in a scrolling box, pictures are embedded."""
    converter = markdown.Markdown(
        extensions=["tables", "fenced_code", "sane_lists"], extension_configs={"tables": {"use_align_attribute": True}}
    )
    converter.preprocessors.deregister("html_block")
    converter.inlinePatterns.deregister("html")
    html = converter.convert(text)
    html = html.replace("<table>", '<div class="box" tabindex="0" role="region" aria-label="Table"><table>').replace(
        "</table>", "</table></div>"
    )

    def embedded(match: re.Match[str]) -> str:
        alt = ALT.search(match[0])
        is_ours = (pictures / match[1]).is_file()
        return f'<span class="figure">{picture_html(match[1], alt[1] if alt else "", pictures)}</span>' if is_ours else match[0]

    return SOURCE.sub(embedded, html)
