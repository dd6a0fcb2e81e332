"""The commands of README.md and docs/ that measure or draw something, and how each is run at its smallest size.

    python -m tests.docs_commands run [PROGRAM ...]  run those of the suite `exhaustive`: command, exit code, seconds (about 20 minutes)

The pages' commands are found in their code (`found`); `WAYS` knows each program. A script of `benchmarks/` that no page names is run, too.
"""

import argparse
import importlib.util
import itertools
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from control.common import command_line, operator_variables
from tests import doc_pages
from tests.ports import worker_ports
from tests.project import ROOT, Project, copy_project

TEST, EXHAUSTIVE, LAB = "test", "exhaustive", "lab"
"""In the unit suite, in process; real training, in a scratch copy; on nodes in containers, as root: tests/lab covers the parts."""
PLAYBOOKS = ("sweep.yml", "doctor.yml", "report.yml")
"""What measures or draws, beside everything in benchmarks/."""
FLAGS = ("--check",)
OTHERS = ("pytest", "pip")
"""Modules that measure nothing."""
SECONDS, TOO_LONG = 600, 124
"""A command may run so long; its exit code if it does not end."""
WORKERS = 5
RUN = "-e config=lecture_cnn -e dataset=pictures -e workers=2 -e epochs=2 -e set=train.batch_size=8"
TRAIN = f"train.yml {RUN} -e run=docs"


@dataclass(frozen=True)
class Way:
    """How a program is run at its smallest size."""

    suite: str
    sizes: tuple[str, ...] = ("",)
    """Arguments, once for each run; `{folder}` is an empty folder."""
    before: tuple[str, ...] = ()
    """Commands that it needs, each run once for all programs."""


WAYS = {
    "benchmarks/accuracy.yml": Way(
        EXHAUSTIVE, ("-e accuracy=docs-accuracy -e configs=lecture_cnn -e seeds=1 -e epochs=1 -e workers=2 -e dataset=pictures",)
    ),
    "benchmarks/scripts/parameter_server.py": Way(LAB),
    "benchmarks/chaos.yml": Way(LAB),
    "benchmarks/scripts/gpu_check.py": Way(EXHAUSTIVE, ("--cpu --results {folder}/gpus",)),
    "benchmarks/inference.yml": Way(
        EXHAUSTIVE,
        ("-e config=lecture_cnn -e devices=1 -e batches=4 -e passes=1", "-e run=docs -e devices=1,2 -e batches=4 -e passes=1"),
        (TRAIN,),
    ),
    "benchmarks/scripts/kernels.py": Way(EXHAUSTIVE, ("--rows 64 --columns 8 --images 4 --rounds 1",)),
    "benchmarks/scripts/command_time.py": Way(EXHAUSTIVE, (f"--rounds 1 {RUN}",)),
    "benchmarks/scripts/launch_time.py": Way(EXHAUSTIVE, (f"--rounds 1 {RUN}",)),
    "benchmarks/loader.yml": Way(
        EXHAUSTIVE, ("-e limit=20 -e loaders=1 -e passes=1", "-e dataset=pictures -e limit=1000 -e loaders=1,3 -e passes=1")
    ),
    "benchmarks/scripts/padding.py": Way(TEST, ("--epochs 1 --batch 512",)),
    "benchmarks/peers.yml": Way(
        EXHAUSTIVE, ("-e peers=docs-peers -e workers=2 -e rounds=1 -e steps=8 -e systems=lockstep,lockstep-parts,ideal,stock",)
    ),
    "benchmarks/scripts/predictions.py": Way(
        EXHAUSTIVE, ("--rounds 1 --label docs -e config=lecture_cnn -e dataset=pictures -e workers=2 -e set=train.steps=80",)
    ),
    "benchmarks/scripts/stragglers.py": Way(LAB),
    "benchmarks/scripts/taxi.py": Way(
        EXHAUSTIVE,
        ("--run taxi",),
        ("train.yml -e model=examples/taxi.py:build -e dataset=examples/taxi.py:data -e run=taxi -e epochs=1 -e set=train.batch_size=512",),
    ),
    "doctor.yml": Way(EXHAUSTIVE, ("-e config=lecture_cnn -e dataset=pictures -e workers=2",)),
    "report.yml": Way(EXHAUSTIVE, ("-e run=docs",), (TRAIN,)),
    "sweep.yml": Way(
        EXHAUSTIVE,
        (
            "-e sweep=docs-scaling -e config=lecture_cnn -e dataset=pictures -e workers=1-2 -e repeats=1 -e epochs=1",
            "-e sweep=docs-settings -e config=lecture_cnn -e dataset=pictures -e epochs=1 -e vary=optimizer.learning_rate=0.1,0.01",
        ),
    ),
    "tests.follow_fit": Way(EXHAUSTIVE),
    "tests.oracle": Way(EXHAUSTIVE, ("2",)),
}


@dataclass(frozen=True)
class Command:
    """A command of a page."""

    page: str
    program: str
    """A playbook, a script, or a module."""
    arguments: tuple[str, ...]

    @property
    def measures(self) -> bool:
        """Whether it measures or draws something."""
        module = not self.program.endswith((".yml", ".py")) and "/" not in self.program
        return self.program in PLAYBOOKS or self.program.startswith("benchmarks/") or (module and self.program not in OTHERS)


def found() -> list[Command]:
    """The commands of all pages that start a playbook, a script or a module."""
    return [
        command for page in doc_pages.pages() for command in commands(page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix())
    ]


def commands(text: str, page: str = "") -> list[Command]:
    """The commands of a page."""
    blocks = "\n".join("\n".join(section.code) for section in doc_pages.sections(text)).replace("\\\n", " ")
    parts = (part for line in blocks.splitlines() if re.search(r"ansible-playbook|python", line) for part in _parts(line))
    return [command for part in parts if (command := _command(page, part))]


def _parts(line: str) -> list[list[str]]:
    """The words of each command of a line, with what a page puts in brackets as optional, and without a comment."""
    plain = re.sub(r"\[(-[^\]]*)\]", r"\1", line).replace(" | -e", " -e")
    try:
        words = shlex.split(plain, comments=True)
    except ValueError:
        return []
    parts: list[list[str]] = [[]]
    for word in words:
        if word in ("&&", ";", "|"):
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _command(page: str, words: Sequence[str]) -> Command | None:
    words = list(itertools.dropwhile(re.compile(r"[A-Z_]+=").match, words))
    name = Path(words[0]).name if words else ""
    if name == "ansible-playbook":
        program = next((word for word in words if word.endswith(".yml")), None)
        return Command(page, program, tuple(word for word in words[1:] if word != program)) if program else None
    if not re.fullmatch(r"python[\d.]*", name) or len(words) < 2:
        return None
    program, rest = (words[2], words[3:]) if words[1] == "-m" and len(words) > 2 else (words[1], words[2:])
    return Command(page, program, tuple(rest))


def refusal(command: Command) -> str:
    """Why a command's options would be refused by the program itself; empty if they are not."""
    if command.program.endswith(".yml"):
        return _of_playbook(command.program, command.arguments)
    path = ROOT / command.program
    if not path.is_file():
        return "" if importlib.util.find_spec(command.program) else f"there is no {command.program}"
    try:
        more = parsed(command.arguments, path)
    except SystemExit:
        return f"{command.program} does not take {shlex.join(command.arguments)}"
    return _of_playbook("train.yml", more)


class Parsed(Exception):
    """A script has parsed its command line; what it takes for `ansible-playbook` is left over."""


def parsed(words: Sequence[str], path: Path) -> list[str]:
    """The words that a script leaves for the playbooks that it starts; SystemExit if it refuses one."""
    parse = argparse.ArgumentParser.parse_known_args

    def known(self: argparse.ArgumentParser) -> Any:
        raise Parsed(parse(self)[1])

    def strict(self: argparse.ArgumentParser) -> Any:
        if rest := parse(self)[1]:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        raise Parsed([])

    with (
        mock.patch.object(sys, "argv", [str(path), *words]),
        mock.patch.object(argparse.ArgumentParser, "parse_known_args", known),
        mock.patch.object(argparse.ArgumentParser, "parse_args", strict),
    ):
        try:
            module(path).main()
        except Parsed as left:
            return list(left.args[0])
    raise AssertionError(f"{path} has parsed no command line")


def module(path: Path) -> Any:
    """A script of benchmarks/, imported."""
    return importlib.import_module(path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."))


def _of_playbook(program: str, words: Sequence[str]) -> str:
    """Why a playbook would refuse a command line."""
    given, rest = {}, list(words)
    while rest:
        word = rest.pop(0)
        if word in ("-i", "-e") and rest:
            value = rest.pop(0)
            if word == "-e" and not value.startswith("{"):
                name, _, given[name] = value.partition("=")
        elif word not in FLAGS:
            return f"{program}: {word} is no option of these pages"
    if not (ROOT / program).is_file():
        return f"there is no {program}"
    try:
        operator_variables.check_variables(program.removesuffix(".yml"), given, command_line.inventory_variables())
    except operator_variables.ConfigError as error:
        return str(error)
    return ""


class Unprepared(Exception):
    """A command that a program needs before it has failed: the command, its exit code."""


class Scratch:
    """A copy of the project with local workers and a folder of pictures; each preparation is done once."""

    def __init__(self, root: Path):
        """Copy the project."""
        root.mkdir()
        copy_project(root)
        ports = "".join(f"    worker{number}: {{worker_port: {port}}}\n" for number, port in enumerate(worker_ports(WORKERS), 1))
        (root / "inventory/local/hosts.yml").write_text(f"workers:\n  hosts:\n{ports}")
        write_pictures(root / "pictures")
        (root / "empty").mkdir()
        self.project, self._done = Project(root), set[str]()

    def prepare(self, commands: Sequence[str]) -> None:
        """Run what a program needs and is not done yet."""
        for command in commands:
            if command not in self._done:
                if code := self.run(command):
                    raise Unprepared(command, code)
                self._done.add(command)

    def run(self, command: str) -> int:
        """Run a playbook, a script or a module with its arguments; its output is that of this process."""
        program, *arguments = shlex.split(command.format(folder=self.project.root / "empty"))
        root = ROOT if program.startswith("tests.") else self.project.root
        start = {".yml": [str(Path(sys.executable).parent / "ansible-playbook"), program], ".py": [sys.executable, program]}
        argv = start.get(Path(program).suffix, [sys.executable, "-m", program])
        environment = {**self.project.environment(), "PYTHONPATH": str(root)}
        try:
            return subprocess.run([*argv, *arguments], cwd=root, env=environment, check=False, timeout=SECONDS).returncode
        except subprocess.TimeoutExpired:
            return TOO_LONG


def write_pictures(root: Path) -> None:
    """Pictures of three classes."""
    random = np.random.default_rng(0)
    for split, count in (("train", 60), ("test", 10)):
        for label in range(3):
            (root / split / f"class{label}").mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 90, (28, 28, 3), dtype=np.uint8)
                pixels[..., label] += 120
                Image.fromarray(pixels).save(root / split / f"class{label}" / f"{number}.png")


def run(programs: Sequence[str]) -> int:
    """Run programs of the suite `exhaustive`, all by default, and print the table; the number of those that failed."""
    rows: list[tuple[str, int, float]] = []
    with tempfile.TemporaryDirectory(prefix="lockstep-docs-") as folder:
        scratch = Scratch(Path(folder) / "project")
        for program in programs or [name for name, way in WAYS.items() if way.suite == EXHAUSTIVE]:
            begun = time.monotonic()
            try:
                rows += _run(scratch, program, WAYS[program])
            except Unprepared as failed:
                command, code = failed.args
                rows.append((f"{command} (for {program})", code, time.monotonic() - begun))
    print(f"\n{'code':>4} {'seconds':>8}  command")
    for command, code, seconds in rows:
        print(f"{code:4} {seconds:8.1f}  {command}")
    return sum(code != 0 for _, code, _ in rows)


def _run(scratch: Scratch, program: str, way: Way) -> Iterator[tuple[str, int, float]]:
    scratch.prepare(way.before)
    for size in way.sizes:
        command, begun = f"{program} {size}".strip(), time.monotonic()
        print(f"\n== {command}", flush=True)
        yield command, scratch.run(command), time.monotonic() - begun


if __name__ == "__main__":
    sys.exit(min(1, run(sys.argv[2:])))
