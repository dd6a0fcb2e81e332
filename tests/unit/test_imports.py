"""The law of the house: `plugins -> benchmarks -> control -> trainer`, never back."""

import ast

import pytest

from control.common.project import ROOT

ORDER = ("trainer", "control", "benchmarks", "plugins")
ON_HOSTS = ("plugins/modules", "plugins/module_utils")
"""Ansible sends these alone: they import nothing of the project but each other."""


def imported(path):
    """Top-level packages of the project that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        yield from (package for name in names if (package := name.partition(".")[0]) in ORDER)


def back_edges(root):
    """`file imports package` for every import against the order."""
    for rank, folder in enumerate(ORDER):
        for path in sorted((root / folder).rglob("*.py")):
            allowed = () if path.relative_to(root).as_posix().startswith(ON_HOSTS) else ORDER[: rank + 1]
            yield from (f"{path.relative_to(root)} imports {package}" for package in imported(path) if package not in allowed)


def test_every_import_follows_the_order():
    assert list(back_edges(ROOT)) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("trainer/worker/loop.py", "from control.runs.show import result_text"),
        ("trainer/worker/loop.py", "def late():\n    import plugins.shared.action"),
        ("control/runs/planning/plan.py", "from benchmarks.analysis import peers"),
        ("plugins/modules/host_probe.py", "from trainer.common import files"),
    ],
)
def test_an_import_back_is_noticed(file, line, tmp_path):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(line)
    assert [edge.split(" ")[0] for edge in back_edges(tmp_path)] == [file]


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("claims", "trainer/host/claims.py"),
        ("ports", "trainer/host/ports.py"),
        ("sealed", "trainer/host/sealed_files.py"),
        ("tmux", "control/remote/tmux.py"),
        ("tmux_socket", "trainer/host/tmux_socket.py"),
    ],
)
def test_what_both_sides_run_is_one_file(name, target):
    path = ROOT / f"plugins/module_utils/lockstep_{name}.py"
    assert path.is_symlink()
    assert path.resolve() == ROOT / target
