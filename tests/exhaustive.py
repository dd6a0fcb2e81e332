"""Tests that run before a release and after their area was changed: `python -m tests.exhaustive [--since COMMIT] [--list]`.

A test names the folders and files whose change triggers it: `@EXHAUSTIVE("roles/firewall", "trainer/network")`. Without any, the
`TRIGGERS` of its module count; without these, every change triggers it. A change of its own file always does.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOGETHER = "lab"
"""The suite whose tests share one set of hosts: one at a time."""


@dataclass(frozen=True)
class Exhaustive:
    """A test that runs only when asked for."""

    name: str
    paths: tuple[str, ...]
    """Its triggers, relative to the project; none: every file."""
    alone: bool

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]

    @property
    def suite(self) -> str:
        return self.file.split("/")[1]

    def triggered(self, changed: Iterable[str]) -> bool:
        """Whether a changed file is one of its triggers, or lies in one."""
        paths = (*self.paths, self.file)
        return any(not self.paths or file == path or file.startswith(f"{path}/") for file in changed for path in paths)


@dataclass(eq=False)
class Collector:
    """A plugin that keeps the exhaustive tests that pytest collects."""

    tests: list[Exhaustive] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.errors.append(f"{report.nodeid}: {report.longreprtext}")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if item.get_closest_marker("exhaustive"):
                self.errors += without_trigger(item)
                self.tests.append(Exhaustive(item.nodeid, tuple(triggers(item)), item.get_closest_marker("alone") is not None))


def triggers(item: pytest.Item) -> Sequence[str]:
    """The paths of its own markers, else those of its module."""
    own = dict.fromkeys(path for marker in item.iter_markers("exhaustive") for path in marker.args)
    return list(own) or getattr(item.module, "TRIGGERS", ())


def without_trigger(item: pytest.Item) -> list[str]:
    """A message for each trigger that is neither a file nor a folder any more: nothing could ever trigger the test by it."""
    return [f"{item.nodeid}: there is no {path} to trigger it" for path in triggers(item) if not (ROOT / path).exists()]


def suites() -> list[str]:
    """Folders of tests that start what they test; those of single functions have no exhaustive ones."""
    return sorted({path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/*/test_*.py")} - {"tests/unit"})


def collected(folders: Sequence[str]) -> list[Exhaustive]:
    """The exhaustive tests of folders.

    Raises:
        SystemExit: a file can't be imported, or a trigger does not exist.
    """
    os.environ["LOCKSTEP_TESTS"] = "all"
    collector = Collector()
    quiet = ["-o", "addopts=--strict-markers", "-p", "no:terminal", "-p", "no:cacheprovider"]
    code = pytest.main([*quiet, "--collect-only", *(str(ROOT / folder) for folder in folders)], plugins=[collector])
    if collector.errors or code != pytest.ExitCode.OK:
        raise SystemExit("\n".join(collector.errors) or f"pytest collects no tests: {code!r}")
    return collector.tests


def changed_since(commit: str, root: Path = ROOT) -> list[str]:
    """Files that differ from a commit, the uncommitted and the new included.

    Raises:
        SystemExit: git knows no such commit.
    """
    commands = (["diff", "--name-only", "--no-renames", commit, "--"], ["ls-files", "--others", "--exclude-standard"])
    files: list[str] = []
    for command in commands:
        done = subprocess.run(["git", "-C", str(root), *command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"SINCE={commit}: {done.stderr.strip()}")
        files += done.stdout.splitlines()
    return files


def listing(tests: Iterable[Exhaustive]) -> str:
    """The tests, grouped by what triggers them."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for test in tests:
        groups.setdefault(test.paths, []).append(test.name)
    blocks = [[f"{', '.join(paths) or 'any file'}:", *(f"  {name}" for name in names)] for paths, names in sorted(groups.items())]
    return "\n".join(line for block in blocks for line in block)


def commands(tests: Sequence[Exhaustive], lanes: int) -> list[list[str]]:
    """Arguments of the pytest processes that run tests, one after the other: what may share the machine first."""
    lab = [test.name for test in tests if test.suite == TOGETHER]
    shared = [test.name for test in tests if test.suite != TOGETHER and not test.alone]
    alone = [test.name for test in tests if test.suite != TOGETHER and test.alone]
    runs = [(["-n", str(lanes), "--dist", "loadfile"], shared), ([], alone), ([], lab)]
    return [["-q", "--durations=10", *options, *names] for options, names in runs if names]


def main(words: Sequence[str] | None = None) -> int:
    """Print the tests with their triggers, then run them; the exit code is 1 when any fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.exhaustive", description=__doc__)
    parser.add_argument("--since", metavar="COMMIT", help="only tests that a change since COMMIT triggers")
    parser.add_argument("--list", action="store_true", help="print them, run none")
    parser.add_argument("--lanes", type=int, default=2, help="how many at a time, where they may share the machine")
    given = parser.parse_args(words)
    tests = collected(suites())
    if given.since:
        changed = changed_since(given.since)
        tests = [test for test in tests if test.triggered(changed)]
    print(listing(tests) or f"no exhaustive test is triggered by the changes since {given.since}", flush=True)
    if given.list:
        return 0
    environment = {**os.environ, "LOCKSTEP_TESTS": "all"}
    argvs = [[sys.executable, "-m", "pytest", *words] for words in commands(tests, given.lanes)]
    return max((subprocess.run(argv, cwd=ROOT, env=environment, check=False).returncode for argv in argvs), default=0)


if __name__ == "__main__":
    sys.exit(main())
