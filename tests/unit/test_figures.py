"""Every figure of README.md and docs/ names the date and the commit at which it was measured: `2026-11-22 at abc1234`."""

import itertools
import re
import subprocess

import pytest

from tests import doc_pages
from tests.doc_pages import Section
from tests.project import ROOT

DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
MEASURED = re.compile(rf"({DATE.pattern})(?: (?:and|to) \d\d)? at ([0-9a-f]{{7}})\b")
UNIT = re.compile(r"\b(?:images/s|examples/s|rows/s|requests/s|ms|seconds|s|accuracy|times)\b")
"""In the head of a table of measurements."""
NUMBER = re.compile(r"\**\d[\d,.]*\b")
HASHES = 10


def undated(text: str) -> list[str]:
    """Sections with a table of measurements that have no date and commit, and neither has a section around them."""
    around, found = list[Section](), []
    for section in doc_pages.sections(text):
        around = [*(one for one in around if one.depth < section.depth), section]
        if has_measurements(section) and not any(MEASURED.search("\n".join(one.prose)) for one in around):
            found.append(section.title)
    return found


def has_measurements(section: Section) -> bool:
    """Whether a section has a table whose head has a unit and whose rows have a cell that begins with a number."""
    lines, head = [], ""
    for before, line in itertools.pairwise(["", *section.prose]):
        if line.startswith("|") and not before.startswith("|"):
            head = line
        elif line.startswith("|"):
            lines.append((head, line))
    return any(UNIT.search(head) and any(map(NUMBER.match, map(str.strip, line.split("|")[2:]))) for head, line in lines)


def without_commit(text: str) -> list[tuple[str, str]]:
    """Dates that no commit follows in their section, with the section's title."""
    found = []
    for section in doc_pages.sections(text):
        prose = "\n".join(section.prose)
        named = {date for date, _ in MEASURED.findall(prose)}
        found += [(section.title, date) for date in sorted({*DATE.findall(prose)} - named)]
    return found


@pytest.mark.parametrize("page", doc_pages.pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_figures_of_a_page_name_date_and_commit(page):
    text = page.read_text(encoding="utf-8")
    assert without_commit(text) == []
    assert undated(text) == []


def test_the_commits_are_of_this_repository():
    hashes = {commit for page in doc_pages.pages() for _, commit in MEASURED.findall(page.read_text(encoding="utf-8"))}
    assert len(hashes) > HASHES
    git = ["git", "-C", str(ROOT)]
    if subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True, check=False).stdout != "false\n":
        pytest.skip("no clone with its history")
    asked = "".join(f"{commit}^{{commit}}\n" for commit in sorted(hashes))
    answers = subprocess.run([*git, "cat-file", "--batch-check"], input=asked, capture_output=True, text=True, check=True).stdout
    assert [line for line in answers.splitlines() if " commit " not in line] == []


@pytest.mark.parametrize(
    ("text", "dates"),
    [
        ("On 2026-11-22, it was fast.", [("", "2026-11-22")]),
        ("On 2026-11-22 at abc1234, it was fast. On 2026-11-22, too. 2026-11-22 and 23 at abc1234", []),
        ("2026-11-22 at abc1234\n## Later\n2026-11-22", [("Later", "2026-11-22")]),
        ("`2026-11-22`\n\n    2026-11-22\n\n```\n2026-11-22\n```", []),
    ],
)
def test_dates_without_a_commit_are_found(text, dates):
    assert without_commit(text) == dates


TABLE = "| | images/s |\n| --- | ---: |\n| one | 3,000 |\n"


@pytest.mark.parametrize(
    ("text", "titles"),
    [
        (f"## A\n\n{TABLE}", ["A"]),
        (f"## A\n\n2026-11-22 at abc1234:\n\n{TABLE}", []),
        (f"# A\n\nAll: 2026-11-22 at abc1234\n\n## B\n\n### C\n\n{TABLE}", []),
        (f"## A\n\n2026-11-22 at abc1234\n\n## B\n\n{TABLE}", ["B"]),
        ("## A\n\n| variable | meaning |\n| --- | --- |\n| rate | images/s |\n", []),
    ],
)
def test_tables_of_measurements_without_a_date_are_found(text, titles):
    assert undated(text) == titles
