"""Code shared by benchmark scripts: command line, commands of a checkout in turns, medians with their range."""

import argparse
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from control.common import project, text

T = TypeVar("T")


def parser(description: str | None, versions: bool = False, **numbers: int) -> argparse.ArgumentParser:
    """A command line with whole numbers, by name and default; with `versions`, also with two checkouts to compare."""
    line = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if versions:
        line.add_argument("--versions", nargs=2, type=lambda path: Path(path).resolve(), metavar=("OLD", "NEW"), default=[project.ROOT])
    for name, default in numbers.items():
        line.add_argument(f"--{name}", type=int, default=default)
    return line


def names(given: str, known: Iterable[str]) -> list[str]:
    """Names of an option, separated by commas."""
    listed = given.split(",")
    if unknown := [name for name in listed if name not in known]:
        raise argparse.ArgumentTypeError(f"{given}: {', '.join(unknown)} is unknown; there are {', '.join(known)}")
    return listed


def in_turn(ways: Sequence[T], round_number: int) -> Sequence[T]:
    """Ways in the order of a round: forwards and backwards, so that a machine that becomes slower slows all."""
    return ways[:: 1 if round_number % 2 == 0 else -1]


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Median and range."""
    middle, least, most = (text.Number(value, digits) for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({least} to {most})"


def report(meaning: str, rounds: Sequence[Sequence[float]]) -> None:
    """Print the median of each way's values with their range, and of the ratios of two ways; a round has a value of each way."""
    texts = [f"{spread(values, 1):>24}" for values in zip(*rounds, strict=True)]
    if len(texts) > 1 and all(old for old, _ in rounds):
        texts.append(f"ratio {statistics.median(new / old for old, new in rounds):.3f}")
    print(f"{'  '.join(texts)}  {meaning}", flush=True)


@dataclass(frozen=True)
class Commands:
    """Commands of a checkout, with the arguments for `ansible-playbook` that a script was given."""

    more: tuple[str, ...] = ()
    root: Path = project.ROOT

    @property
    def inventory(self) -> list[str]:
        """Words among the arguments that choose the inventory."""
        return [word for flag, value in itertools.pairwise(self.more) if flag == "-i" for word in (flag, value)]

    def folder(self, run: str) -> Path:
        """Folder of a run."""
        return self.root / "runs" / run

    def play(self, playbook: str, run: str = "", *options: str) -> None:
        """Run a playbook, with a run's name if it takes one; exit with its last lines if it fails."""
        self._play(playbook, *(["-e", f"run={run}"] if run else []), *self.more, *options)

    def delete(self, run: str) -> None:
        """Delete a run, also one that an interrupted measurement left, from the hosts and here; nothing if there is none."""
        if self.folder(run).exists():
            self._play("playbooks/delete_run.yml", "-e", f"run={run}", *self.inventory)

    @contextlib.contextmanager
    def trained(self, run: str, *options: str) -> Iterator[Path]:
        """Train, and delete the run afterwards; the run's folder."""
        self.delete(run)
        self.play("train.yml", run, *options)
        yield self.folder(run)
        self.delete(run)

    def start(self, *words: str, session: bool = False) -> "subprocess.Popen[str]":
        """Start `ansible-playbook` with its output and errors in one pipe; with `session`, in a session of its own."""
        environment, pipe, joined = {**os.environ, "PYTHONPATH": str(self.root)}, subprocess.PIPE, subprocess.STDOUT
        argv = [str(Path(sys.executable).parent / "ansible-playbook"), *words]
        return subprocess.Popen(argv, cwd=self.root, env=environment, stdout=pipe, stderr=joined, text=True, start_new_session=session)

    def _play(self, *words: str) -> None:
        with self.start(*words) as started:
            output = started.communicate()[0]
        if started.returncode != 0:
            last = "\n".join(output.splitlines()[-20:])
            sys.exit(f"{self.root}: {words[0]} ended with exit code {started.returncode}:\n{last}")
