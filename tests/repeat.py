"""Run a suite again and again on a busy machine, and report every test that ever failed: `python -m tests.repeat [N] [TESTS ...]`.

N is 10 unless given; TESTS are files or folders of tests, by default all that `make test` runs. Two processes spin meanwhile. Each run's
output and JUnit report are kept below `.lockstep/repeat/`.
"""

import contextlib
import datetime
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests import suites

BUSY = 2
"""Processes that spin beside the tests."""
SPIN = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"
"""Ends with its parent, even if that is killed."""
PASSED, SOME_FAILED = 0, 1
"""Exit codes of pytest: with any other, not all tests ran."""


@dataclass
class Failures:
    """What failed in any of the runs."""

    tests: dict[str, list[Path]] = field(default_factory=dict)
    """The output of each run in which a test failed, by test."""
    unfinished: list[Path] = field(default_factory=list)
    """The output of runs that ended before all tests had run."""

    def add(self, code: int, report: Path, output: Path) -> None:
        """Take one pytest's exit code and report into account."""
        names = suites.failed(report)
        for name in names:
            self.tests.setdefault(name, []).append(output)
        if code not in (PASSED, SOME_FAILED) or (code and not names):
            self.unfinished.append(output)

    def __bool__(self) -> bool:
        """Whether anything failed."""
        return bool(self.tests or self.unfinished)

    def told(self, runs: int) -> str:
        """A line per test, the most frequent first, and where its output is."""
        ordered = sorted(self.tests.items(), key=lambda one: (-len(one[1]), one[0]))
        lines = [f"{len(outputs)} of {runs}  {name}\n    {', '.join(map(str, outputs))}" for name, outputs in ordered]
        lines += [f"ended before all tests had run: {output}" for output in self.unfinished]
        return "\n".join(lines or [f"{runs} of {runs} runs passed"])


@contextlib.contextmanager
def busy(count: int = BUSY) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keep processors busy while the context lasts."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN, str(os.getpid())]) for _ in range(count)]
    try:
        yield spinning
    finally:
        for process in spinning:
            process.kill()
        for process in spinning:
            process.wait()


def repeat(runs: int, commands: Sequence[Sequence[str]], folder: Path) -> Failures:
    """Run the commands in turn, as often as asked; output and reports go to the folder."""
    folder.mkdir(parents=True)
    failures = Failures()
    with busy():
        for run in range(1, runs + 1):
            for number, arguments in enumerate(commands, 1):
                name = f"run-{run:02d}-{number}"
                report, output = folder / f"{name}.xml", folder / f"{name}.log"
                with output.open("wb") as stream:
                    done = subprocess.run(suites.pytest(arguments, report), cwd=suites.ROOT, stdout=stream, stderr=stream, check=False)
                failures.add(done.returncode, report, output)
                print(f"{name}: exit code {done.returncode}, {len(suites.failed(report))} failed: {' '.join(arguments)}", flush=True)
    return failures


def main(arguments: Sequence[str]) -> int:
    """Exit code 1 if any test ever failed."""
    count, tests = (arguments[0], arguments[1:]) if arguments and arguments[0].isdecimal() else ("10", arguments)
    if missing := [one for one in tests if not (suites.ROOT / one.partition("::")[0]).exists()]:
        print(f"error: {missing[0]}: there is no such file or folder of tests", file=sys.stderr)
        return 2
    if not (commands := suites.commands(only=tests)):
        print(f"error: make test runs nothing of {', '.join(tests)}", file=sys.stderr)
        return 2
    # The busy processes end with this one in any case; pytest, too, must not go on.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = suites.ROOT / ".lockstep" / "repeat" / f"{datetime.datetime.now(tz=datetime.UTC):%Y%m%dT%H%M%S}"
    failures = repeat(int(count), commands, folder)
    print(failures.told(int(count)), flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
