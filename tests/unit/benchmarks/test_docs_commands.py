"""Commands of README.md and docs/ that measure or draw: each is known, is accepted by its own parser, and runs at its smallest size."""

import shlex
import sys

import pytest

from tests import doc_pages, docs_commands
from tests.docs_commands import TEST, WAYS, Command, commands, refusal
from tests.project import ROOT

NO_SCRIPTS = {"__init__", "time_on_host"}
SMALLEST = [(program, size) for program, way in WAYS.items() if way.suite == TEST for size in way.sizes]


def test_every_measuring_command_of_a_page_is_known():
    assert sorted({(one.page, one.program) for one in docs_commands.found() if one.measures and one.program not in WAYS}) == []


def test_everything_in_benchmarks_that_starts_is_known():
    files = [*(ROOT / "benchmarks").glob("*.yml"), *(ROOT / "benchmarks/scripts").glob("*.py")]
    started = {path.relative_to(ROOT).as_posix() for path in files if path.stem not in NO_SCRIPTS}
    assert started == {program for program in WAYS if program.startswith("benchmarks/")}


def test_every_command_of_a_page_is_accepted():
    """Playbooks of all kinds, and what measures."""
    refused = [(one.page, refusal(one)) for one in docs_commands.found() if one.measures or one.program.endswith(".yml")]
    assert [(page, reason) for page, reason in refused if reason] == []


@pytest.mark.parametrize("program", [name for name, way in WAYS.items() if way.suite != docs_commands.LAB])
def test_the_smallest_size_is_accepted(program):
    assert [refusal(Command("", program, tuple(shlex.split(size)))) for size in WAYS[program].sizes] == [""] * len(WAYS[program].sizes)


@pytest.mark.parametrize(
    ("text", "programs"),
    [
        ("    ansible-playbook sweep.yml -e workers=3     # this number only", [("sweep.yml", "-e", "workers=3")]),
        ("```\nansible-playbook -i a sweep.yml -e b=c\n```", [("sweep.yml", "-i", "a", "-e", "b=c")]),
        ("    ansible-playbook sweep.yml \\\n      -e a=b", [("sweep.yml", "-e", "a=b")]),
        ("    ansible-playbook doctor.yml [-e a=b | -e c=d]", [("doctor.yml", "-e", "a=b", "-e", "c=d")]),
        ("    ansible-playbook a.yml -e x=1 && ansible-playbook b.yml", [("a.yml", "-e", "x=1"), ("b.yml",)]),
        ("As `PYTHONPATH=. .venv/bin/python benchmarks/scripts/padding.py` says", [("benchmarks/scripts/padding.py",)]),
        ("    X=1 .venv/bin/python -m tests.follow_fit", [("tests.follow_fit",)]),
        ("text\n    ansible-playbook sweep.yml", []),
        ("    train.yml    <worker_root>/runs", []),
        ("```python\nimport keras\n```", []),
    ],
)
def test_commands_are_found_in_code(text, programs):
    assert [(one.program, *one.arguments) for one in commands(text)] == programs


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ansible-playbook benchmarks/loader.yml -e loader=2", "benchmarks/loader.yml takes no such variable"),
        ("ansible-playbook benchmarks/nothing.yml", "there is no benchmarks/nothing.yml"),
        ("ansible-playbook doctor.yml --checks", "--checks is no option of these pages"),
        ("python benchmarks/scripts/padding.py --epochs 3 x", "does not take --epochs 3 x"),
        ("python benchmarks/scripts/launch_time.py --rounds x", "does not take --rounds x"),
        ("python benchmarks/scripts/launch_time.py --rounds 1 -e steps=3", "train.yml takes no such variable"),
        ("python -m tests.nothing", "there is no tests.nothing"),
    ],
)
def test_options_that_its_parser_refuses_are_named(line, reason):
    (command,) = commands(f"    {line}")
    assert reason in refusal(command)


@pytest.mark.parametrize(("program", "size"), SMALLEST)
def test_it_runs_at_its_smallest_size(program, size, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [program, *shlex.split(size.format(folder=tmp_path))])
    docs_commands.module(ROOT / program).main()
    assert capsys.readouterr().out.strip()


def test_code_and_prose_are_told_apart():
    (_, section) = doc_pages.sections(
        "# A `b`\n\nprose `c`\nmore\n    no code\n\n    code\n\n    more\nend\n```\nfenced\n# no heading\n```\n"
    )
    assert (section.title, section.depth) == ("A `b`", 1)
    assert section.code == ["c", "    code", "    more", "fenced", "# no heading"]
    assert [line.strip() for line in section.prose if line.strip()] == ["prose", "more", "no code", "end"]
