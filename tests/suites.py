"""What `make test` runs, and what it reported: shared by `tests.mutants` and `tests.repeat`."""

import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHELESS = ("-p", "no:cacheprovider")


def commands(target: str = "test", only: Sequence[str] = (), root: Path = ROOT) -> list[list[str]]:
    """The arguments of each `pytest` that a make target runs, narrowed to the files or folders `only`, if there are any."""
    lines = subprocess.run(["make", "-n", target], cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    every = [shlex.split(line.partition(" -m pytest ")[2]) for line in lines if " -m pytest " in line]
    return [narrowed for arguments in every if (narrowed := _narrowed(arguments, only, root))] if only else every


def folders(arguments: Sequence[str], root: Path = ROOT) -> list[str]:
    """The folders and files among the arguments of pytest."""
    return [one for one in arguments if not one.startswith("-") and (root / one).exists()]


def _narrowed(arguments: Sequence[str], only: Sequence[str], root: Path) -> list[str]:
    given = folders(arguments, root)
    kept = [one for one in only if any(Path(one.partition("::")[0]).is_relative_to(folder) for folder in given)]
    return [*kept, *(one for one in arguments if one not in given)] if kept else []


def pytest(arguments: Sequence[str], report: Path) -> list[str]:
    """The command line of pytest with a JUnit report whose tests `failed` can name."""
    # Only xunit1 names each test's file.
    return [sys.executable, "-m", "pytest", *arguments, *CACHELESS, "-o", "junit_family=xunit1", f"--junitxml={report}"]


def failed(report: Path) -> dict[str, str]:
    """The tests of a JUnit report that failed, or that could not run, as `file::test` in order; with the first line of why."""
    if not report.is_file():
        return {}
    why: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):
        broken = next((one for one in case if one.tag in ("failure", "error")), None)
        if broken is not None:
            why.setdefault(_node(case), (broken.get("message") or "").strip().partition("\n")[0])
    return why


def _node(case: ET.Element) -> str:
    """`tests/unit/test_x.py::Class::test`, as pytest takes it; a file that can't be collected is itself a test without a class."""
    file, name, place = (case.get(key) or "" for key in ("file", "name", "classname"))
    if not place:
        return file
    inside = place.removeprefix(file.removesuffix(".py").replace("/", ".")).strip(".")
    return "::".join([file, *(part for part in inside.split(".") if part), name])
