"""The law of the house: a folder imports only those before it in the list that docs/code.md prints."""

import ast
import re
from pathlib import Path

import pytest

from control.common.project import ROOT

BY_THEMSELVES = ("plugins/modules", "plugins/module_utils", "benchmarks/peers")
"""Sent alone: they import nothing of the project but each other."""


def listed():
    """The folders of docs/code.md, in order; a package's own files follow its folders."""
    block = (ROOT / "docs/code.md").read_text(encoding="utf-8").split("<!-- order -->")[1]
    folders = []
    for line in re.findall(r"^    (\S.*)$", block, re.MULTILINE):
        package, *names = line.split()
        folders += [*(f"{package}{name}" for name in names), package.rstrip("/")]
    return folders


ORDER = listed()
PACKAGES = tuple(folder for folder in ORDER if "/" not in folder)


def place(path):
    """The number in the list of the innermost folder of a file, given from the root."""
    parents = [parent.as_posix() for parent in Path(path).parents]
    return next(ORDER.index(parent) for parent in parents if parent in ORDER)


def imported(path, root):
    """Files of the project that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            stems = ["/".join(parts[:end]) for end in range(len(parts), 1, -1)] if parts[0] in PACKAGES else []
            files = [file for stem in stems for file in (f"{stem}.py", f"{stem}/__init__.py") if (root / file).is_file()]
            yield from (files or [f"{stem}.py" for stem in stems[-1:]])[:1]


def back_edges(root):
    """`file imports file` for every import against the order."""
    for path in sorted(path for package in PACKAGES for path in (root / package).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        # The face of a package, which names what lies in it.
        if path.name == "__init__.py":
            continue
        for other in imported(path, root):
            if place(other) > place(name) or (name.startswith(BY_THEMSELVES) and not other.startswith("trainer/")):
                yield f"{name} imports {other}"


def circles(edges):
    """Files that import each other in a loop."""
    done, path, found = set(), [], []

    def follow(file):
        if file in path:
            found.append(path[path.index(file) :])
        elif file not in done:
            path.append(file)
            for other in edges.get(file, ()):
                follow(other)
            done.add(path.pop())

    for file in edges:
        follow(file)
    return found


def test_every_import_follows_the_order():
    assert list(back_edges(ROOT)) == []


def test_every_folder_is_listed_once():
    assert len(ORDER) == len(set(ORDER))
    assert [folder for folder in ORDER if not (ROOT / folder).is_dir()] == []


def test_no_files_import_each_other_in_a_loop():
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py"]
    assert circles({path.relative_to(ROOT).as_posix(): list(imported(path, ROOT)) for path in files}) == []


def test_a_loop_is_noticed():
    assert circles({"a": ["b"], "b": ["c"], "c": ["b"]}) == [["b", "c"]]


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("trainer/worker/loop.py", "from control.common import text"),
        ("trainer/worker/loop.py", "def late():\n    import plugins.shared.base_action"),
        ("trainer/network/member.py", "from trainer.worker import loop"),
        ("control/runs/results/course.py", "from control.runs.planning import plan"),
        ("plugins/action/control.py", "from benchmarks.shared import script"),
        ("plugins/modules/host_probe.py", "from control.common import text"),
    ],
)
def test_an_import_back_is_noticed(file, line, tmp_path):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(line)
    assert [edge.split(" ")[0] for edge in back_edges(tmp_path)] == [file]


@pytest.mark.parametrize("name", ["cgroup", "claims", "ports", "sealed_files", "tmux_socket"])
def test_what_both_sides_run_is_one_file(name):
    path = ROOT / f"plugins/module_utils/lockstep_{name.removesuffix('_files')}.py"
    assert path.is_symlink()
    assert path.resolve() == ROOT / f"trainer/host/{name}.py"
