"""Plausible mistakes in product lines (`mutants.yml`), made one at a time in a copy of the tree: which test notices each?

    python -m tests.mutants                    # all, with everything that `make test` runs; continues where it was ended
    python -m tests.mutants --only NAME        # this one (again: several)
    python -m tests.mutants --first-only       # only the tests that are likely to notice
    python -m tests.mutants --list             # names and files
    python -m tests.mutants --write            # and write tests/mutants.md from the results

First run the tests that are likely to notice: the file that mirrors the module's place, files of its name, files that import or name it.
Then, if these pass, everything else. The first failing test counts if it passes without the mutant. Exit code 1 if a mutant survives.
"""

import argparse
import ast
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests import suites
from tests.suites import ROOT

TABLE, PAGE = ROOT / "tests" / "mutants.yml", ROOT / "tests" / "mutants.md"
OWN = "tests/unit/test_mutants.py"
"""Notices every mutant, by the text that is no longer there."""
RESULTS = ROOT / ".lockstep" / "mutants.json"
LIKELY, ALL, LAB = "likely", "all", "lab"
"""How far a mutant was tried: with the likely tests, with all; not here, as a test of the lab notices it."""
LAB_TEST = "lab::"
LIKELY_S, ALL_S = 900, 7200
"""Seconds after which tests that do not end count as having noticed: some mutants wait for ever."""
SURVIVES = "no test"


@dataclass(frozen=True)
class Mutant:
    """One mistake."""

    name: str
    file: str
    old: str
    """Text that is in the file exactly once."""
    new: str
    seen: str
    """What a user would see, one sentence."""
    caught_by: str = ""
    """`lab::FILE::TEST` if only a test of the lab notices."""

    @property
    def digest(self) -> str:
        """Tells a changed mutant from the one of an earlier result."""
        return hashlib.sha256("\0".join((self.file, self.old, self.new)).encode()).hexdigest()[:16]

    def applied(self, text: str) -> str:
        """The file's text with the mistake; ValueError if the old text is not in it exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: its old text is {text.count(self.old)} times in {self.file}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Result:
    """What noticed a mutant."""

    digest: str
    tried: str
    caught_by: str
    """A test; empty if none did."""
    seconds: float


def table(path: Path = TABLE) -> list[Mutant]:
    """All mutants."""
    return [Mutant(**one) for one in yaml.safe_load(path.read_text(encoding="utf-8"))]


# --- which tests are likely to notice


def likely(file: str, tests: Sequence[str], root: Path = ROOT) -> list[str]:
    """Of these test files those that are likely to notice a change of a file, the likeliest first within each folder of `tests/`."""
    ranked = {test: _likeliness(file, test, root) for test in tests}

    def place(test: str) -> tuple[Any, ...]:
        shared = sum(
            1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(Path(file).parts, Path(test).parts[2:], strict=False))
        )
        return _suite(test, tests), ranked[test], Path(file).stem not in Path(test).stem, -shared, test

    return sorted((test for test, rank in ranked.items() if rank is not None), key=place)


def _suite(test: str, tests: Sequence[str]) -> int:
    order = list(dict.fromkeys(one.split("/")[1] for one in tests))
    return order.index(test.split("/")[1])


def _likeliness(file: str, test: str, root: Path) -> int | None:
    """0 for the mirrored file, 1 for the same name, 2 for one that imports it, 3 for one that names it; None for any other."""
    stem = Path(file).stem
    if Path(test).name == f"test_{stem}.py":
        return 0 if Path(*Path(test).parts[2:-1]) == Path(file).parent else 1
    known = _named(root / test)
    if known & {*_modules(file, root)}:
        return 2
    return 3 if known & {stem, Path(file).name, file} else None


def _modules(file: str, root: Path) -> Iterator[str]:
    """Names by which a file is imported: of links to it, too."""
    yield file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    for link in (root / "plugins" / "module_utils").glob("*.py"):
        if link.is_symlink() and link.resolve() == (root / file).resolve():
            yield link.stem


@functools.cache
def _named(test: Path) -> frozenset[str]:
    """What a test file imports, the parameters of its functions, and its texts that are names of files; of programs in it, too."""
    return frozenset(_names(test.read_text(encoding="utf-8")))


def _names(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
            yield from (node.value, Path(node.value).name, node.value.partition("::")[0])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "import " in node.value:
            with contextlib.suppress(SyntaxError):
                yield from _names(node.value)


def files_of(arguments: Sequence[Sequence[str]], root: Path = ROOT) -> list[str]:
    """The test files that some calls of pytest run, in order."""
    places = [root / place for one in arguments for place in suites.folders(one, root)]
    files = [file for place in places for file in (sorted(place.rglob("test_*.py")) if place.is_dir() else [place])]
    return list(dict.fromkeys(file.relative_to(root).as_posix() for file in files))


# --- a copy of the tree, with a mutant in it


class Scratch:
    """A copy of the files that git tracks, beside the environment that runs them."""

    def __init__(self, root: Path):
        """Copy into the empty folder `root`."""
        self.root = root
        self._times = itertools.count(int(time.time()))
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in {*filter(None, listed.split("\0"))} - {OWN}:
            if os.path.lexists(ROOT / name):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name, follow_symlinks=False)
        (root / ".venv").symlink_to((ROOT / ".venv").resolve())

    @contextlib.contextmanager
    def having(self, mutant: Mutant) -> Iterator[None]:
        """The copy has the mutant while the context lasts."""
        path = self.root / mutant.file
        before = path.read_text(encoding="utf-8")
        self._write(path, mutant.applied(before))
        try:
            yield
        finally:
            self._write(path, before)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        # Python takes compiled code for current by its source's size and time, in whole seconds.
        moment = next(self._times)
        os.utime(path, (moment, moment))

    def first_failing(self, arguments: Sequence[str], limit: float) -> str:
        """The first test that fails, of one call of pytest; empty if all pass."""
        report, log = self.root / ".report.xml", self.root / ".report.log"
        report.unlink(missing_ok=True)
        command = suites.pytest([*arguments, "-x", "-q"], report)
        environment = {**os.environ, "PYTHONPATH": str(self.root)}
        with log.open("wb") as stream:
            process = subprocess.Popen(command, cwd=self.root, env=environment, stdout=stream, stderr=stream, start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            return f"no end within {limit:.0f} s: {' '.join(suites.folders(arguments, self.root))}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # 5: no test was selected.
        return "" if code in (0, 5) else next(iter(suites.failed(report)), f"pytest ended with exit code {code}: {_last_line(log)}")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"


# --- trying them


@dataclass
class Trial:
    """The tests that mutants are tried with."""

    scratch: Scratch
    commands: Sequence[Sequence[str]]
    """Arguments of pytest, as of `make test`."""
    first_only: bool = False
    sound: dict[str, bool] = dataclasses.field(default_factory=dict)
    """Whether a test passes without a mutant."""

    def run(self, mutant: Mutant) -> Result:
        """Try one mutant."""
        begun = time.monotonic()
        tried = LIKELY if self.first_only else ALL
        with self.scratch.having(mutant):
            caught = self._first_failing(mutant)
        if caught and not self._passes_without(caught):
            caught, tried = "", f"invalid: {caught} fails without it, too"
        return Result(mutant.digest, tried, caught, round(time.monotonic() - begun, 1))

    def _first_failing(self, mutant: Mutant) -> str:
        root = self.scratch.root
        if first := likely(mutant.file, files_of(self.commands, root), root):
            for arguments in suites.commands(only=first, root=root):
                # In one process, in this order: the likeliest ends the search.
                if caught := self.scratch.first_failing([*arguments, "-n", "0"], LIKELY_S):
                    return caught
        for arguments in () if self.first_only else self.commands:
            if caught := self.scratch.first_failing(arguments, ALL_S):
                return caught
        return ""

    def _passes_without(self, test: str) -> bool:
        """Whether a test passes in the copy as it is: only then it has noticed the mutant."""
        if test not in self.sound:
            self.sound[test] = not test.startswith("tests/") or not self.scratch.first_failing([test], LIKELY_S)
        return self.sound[test]


def read(path: Path) -> dict[str, Result]:
    """Earlier results by the mutant's name."""
    stored: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {name: Result(**one) for name, one in stored.items()}


def left(mutants: Sequence[Mutant], results: dict[str, Result], first_only: bool) -> list[Mutant]:
    """Those to try: changed since, or only tried with the likely tests and not caught by them."""
    enough = (LIKELY, ALL) if first_only else (ALL,)

    def known(mutant: Mutant) -> bool:
        result = results.get(mutant.name)
        return result is not None and result.digest == mutant.digest and bool(result.caught_by or result.tried in enough)

    return [mutant for mutant in mutants if not mutant.caught_by and not known(mutant)]


def report(mutants: Sequence[Mutant], results: dict[str, Result]) -> list[tuple[str, str, str]]:
    """A row per mutant: its name, what caught it, seconds."""
    rows = []
    for mutant in mutants:
        result = results.get(mutant.name)
        if mutant.caught_by.startswith(LAB_TEST):
            rows.append((mutant.name, f"{mutant.caught_by} (not run)", ""))
        elif result is None or result.digest != mutant.digest:
            rows.append((mutant.name, "not tried", ""))
        else:
            rows.append((mutant.name, result.caught_by or f"{SURVIVES} ({result.tried})", f"{result.seconds:.1f}"))
    return rows


def page(mutants: Sequence[Mutant], results: dict[str, Result]) -> str:
    """The page `mutants.md`."""
    rows = report(mutants, results)
    survivors = [name for name, caught, _ in rows if caught.startswith((SURVIVES, "not tried"))]
    lines = [
        "# Mutants",
        "",
        f"{len(mutants)} plausible mistakes in product lines, and the first test that notices each, by `python -m tests.mutants --write`. "
        f"Not noticed: {', '.join(survivors) or 'none'}.",
        "",
        "| mutant | file | what a user would see | caught by | seconds |",
        "|---|---|---|---|---|",
    ]
    for mutant, (name, caught, seconds) in zip(mutants, rows, strict=True):
        lines.append(f"| {name} | `{mutant.file}` | {_cell(mutant.seen)} | {_cell(caught)} | {seconds} |")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").strip()


def main(given: Sequence[str] | None = None) -> int:
    """Exit code 1 if a mutant survives."""
    line = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    line.add_argument("--only", action="append", default=[], metavar="NAME", help="try this mutant, also if it was tried before")
    line.add_argument("--first-only", action="store_true", help="run only the tests that are likely to notice")
    line.add_argument("--tests", action="append", default=[], metavar="PATH", help="run only these of the tests of `make test`")
    line.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="what was found, to go on from")
    line.add_argument("--list", action="store_true", help="show the mutants, and run none")
    line.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = line.parse_args(given)
    # Nothing is left behind: neither the copy nor tests.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    mutants = table()
    if unknown := {*options.only} - {mutant.name for mutant in mutants}:
        line.error(f"--only {sorted(unknown)[0]}: there is no such mutant")
    if options.list:
        print("\n".join(f"{mutant.name}\t{mutant.file}\t{mutant.caught_by}" for mutant in mutants))
        return 0
    chosen = [mutant for mutant in mutants if not options.only or mutant.name in options.only]
    results = read(options.results)
    _try(chosen if options.only else left(chosen, results, options.first_only), results, options)
    if options.write:
        PAGE.write_text(page(mutants, results), encoding="utf-8")
    rows = report(chosen, results)
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    print("\n".join(f"{name:{widths[0]}}  {caught:{widths[1]}}  {seconds:>6}" for name, caught, seconds in rows))
    return int(any(caught.startswith((SURVIVES, "not tried")) for _, caught, _ in rows))


def _try(mutants: Sequence[Mutant], results: dict[str, Result], options: argparse.Namespace) -> None:
    """Try mutants, and keep each result as soon as it is known."""
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        trial = Trial(Scratch(Path(folder)), suites.commands(only=options.tests), options.first_only)
        for number, mutant in enumerate((one for one in mutants if not one.caught_by), 1):
            result = results[mutant.name] = trial.run(mutant)
            options.results.parent.mkdir(parents=True, exist_ok=True)
            options.results.write_text(json.dumps({name: vars(one) for name, one in results.items()}, indent=1), encoding="utf-8")
            print(f"{number} of {len(mutants)}: {mutant.name}: {result.caught_by or SURVIVES} ({result.seconds:.1f} s)", flush=True)


if __name__ == "__main__":
    sys.exit(main())
