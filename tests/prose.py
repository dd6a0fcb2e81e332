"""Docstrings that open with a bare pronoun: `python -m tests.prose` lists them, and fails if there are any.

A docstring is a noun phrase or an imperative, with its unit, then the reason; `Whether ...` and `What ...` leave the object out.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.suites import ROOT

BANNED = ("Of", "The same", "What", "Whether", "Which", "In which", "Until", "Those", "Others", "It")
OPENING = re.compile(rf"(?:{'|'.join(BANNED)})\b")


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of every string that stands as a statement, which documents a module, class, function, constant or field."""
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for one in body if isinstance(body, list) else ():
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                yield one.lineno, one.value.value.strip()


def refused(text: str) -> list[tuple[int, str]]:
    """Line and first line of each docstring with a banned opening, in order."""
    return sorted((line, words.splitlines()[0]) for line, words in docstrings(text) if OPENING.match(words))


def product(root: Path = ROOT) -> list[Path]:
    """Python files that git tracks, apart from tests and from links to others of them."""
    names = subprocess.check_output(["git", "ls-files", "*.py", ":!tests"], cwd=root, text=True).splitlines()
    return [path for name in names if (path := root / name).is_file() and not path.is_symlink()]


def main() -> int:
    """List the refused docstrings as `file:line: opening`; exit code 1 if there are any."""
    found = [(path, *one) for path in product() for one in refused(path.read_text(encoding="utf-8"))]
    for path, line, opening in found:
        print(f"{path.relative_to(ROOT)}:{line}: {opening}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
