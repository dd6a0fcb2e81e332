"""Links between pages lead to a file and a heading, and whatever names a page names one that exists."""

import re
from pathlib import Path

import pytest

from tests import doc_pages
from tests.project import ROOT

LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"\bdocs/[\w/-]+\.md\b")
PLACE = re.compile(r"`([\w.]+)`(?: and `[\w.]+`)? in `(\w+/[\w/]+\.(?:py|yml))`")
NAMING = (".py", ".yml", ".j2", ".md", "Makefile")
OLD = ("CHANGELOG.md",)
"""Its older entries keep the names of their time."""
MOST_PAGES, MOST_LINES = 26, 120


def pages() -> list[Path]:
    """All pages of the project that readers open."""
    return [*doc_pages.pages(), ROOT / "CONTRIBUTING.md", ROOT / "tests/README.md", *sorted(ROOT.glob("roles/*/README.md"))]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = [section.title for section in doc_pages.sections(page.read_text(encoding="utf-8"))]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(page: Path, link: str) -> bool:
    """Whether a link leads nowhere inside the project."""
    file, _, anchor = link.partition("#")
    target = (page.parent / file).resolve() if file else page
    return not target.exists() or bool(anchor and anchor not in anchors(target))


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page):
    prose = "\n".join(line for section in doc_pages.sections(page.read_text(encoding="utf-8")) for line in section.prose)
    assert [link for link in LINK.findall(prose) if "://" not in link and broken(page, link)] == []


def test_pages_that_are_named_exist():
    folders = ("benchmarks", "control", "docs", "examples", "inventory", "playbooks", "plugins", "roles", "templates", "tests", "trainer")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.name.endswith(NAMING)]
    files += [path for path in ROOT.iterdir() if path.name.endswith(NAMING) and path.name not in OLD]
    named = {(path.relative_to(ROOT).as_posix(), name) for path in files for name in NAMED.findall(path.read_text(encoding="utf-8"))}
    assert sorted((path, name) for path, name in named if not (ROOT / name).is_file()) == []


def test_places_of_the_code_map_exist():
    """A name that stands before a file is in that file: the row of a function that moved or was renamed misleads."""
    places = PLACE.findall((ROOT / "docs/code.md").read_text(encoding="utf-8"))
    assert len(places) > 15
    names = [(name.rpartition(".")[2], (ROOT / file).read_text(encoding="utf-8")) for name, file in places]
    assert [name for name, text in names if not re.search(rf"\b{name}\b", text)] == []


def test_documentation_stays_short():
    assert len(list((ROOT / "docs").rglob("*.md"))) <= MOST_PAGES
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MOST_LINES
