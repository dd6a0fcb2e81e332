"""The table of mutants fits the code, and the runner finds the tests that notice one."""

import re
import subprocess
from collections import Counter

import pytest

from tests import mutants
from tests.mutants import ALL, LIKELY, Mutant, Result, left, likely, page, report
from tests.suites import ROOT

TABLE = mutants.table()
PACKAGES = ["trainer", "control", "plugins", "benchmarks", "requirements", "templates", "roles", "playbooks"]
MUTANT = Mutant("sign", "product/sums.py", "a + b", "a - b", "Sums are wrong.")


@pytest.mark.parametrize("mutant", TABLE, ids=lambda mutant: mutant.name)
def test_a_mutant_still_applies(mutant):
    changed = mutant.applied((ROOT / mutant.file).read_text(encoding="utf-8"))
    assert mutant.old != mutant.new
    if mutant.file.endswith(".py"):
        compile(changed, mutant.file, "exec")


def test_the_table_covers_every_package():
    folders = Counter(mutant.file.split("/")[0] for mutant in TABLE)
    assert folders.keys() == set(PACKAGES)
    assert len(TABLE) >= 66
    assert len({mutant.name for mutant in TABLE}) == len(TABLE)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a suite of a few tests, tracked by git."""
    files = {
        "Makefile": "test:\n\t@python -m pytest tests/unit -q -n 2 --dist loadfile\n\t@python -m pytest tests/slow -q\n",
        "pyproject.toml": "[tool.pytest.ini_options]\n",
        "product/sums.py": "def add(a, b):\n    return a + b\n",
        "plugins/module_utils/.keep": "",
        "tests/unit/product/test_sums.py": "from product import sums\n\ndef test_adds():\n    assert sums.add(2, 0) == 2\n",
        "tests/unit/test_others.py": "import product.sums\n\ndef test_adds_ones():\n    assert product.sums.add(1, 1) == 2\n",
        "tests/unit/test_unrelated.py": "def test_passes():\n    pass\n",
        "tests/slow/data/test_sums.py": "def test_nothing():\n    pass\n",
        "tests/slow/test_page.py": "PAGE = 'product/sums.py'\n\ndef test_page():\n    pass\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / ".venv").mkdir()
    for argv in (["git", "init", "-q"], ["git", "add", "."]):
        subprocess.run(argv, cwd=tmp_path, check=True)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    return tmp_path


def test_likely_tests_come_in_order(project):
    """The mirrored file, then one that imports the module; of the next suite one of the same name, then one that names the file."""
    every = mutants.files_of([["tests/unit"], ["tests/slow"]], project)
    first = ["tests/unit/product/test_sums.py", "tests/unit/test_others.py"]
    assert likely("product/sums.py", every, project) == [*first, "tests/slow/data/test_sums.py", "tests/slow/test_page.py"]


@pytest.mark.parametrize(
    ("mutant", "first_only", "caught", "tried"),
    [
        (MUTANT, False, "tests/unit/test_others.py::test_adds_ones", ALL),
        (MUTANT, True, "tests/unit/test_others.py::test_adds_ones", LIKELY),
        (Mutant("same", MUTANT.file, "a + b", "b + a", "Nothing."), True, "", LIKELY),
        (Mutant("syntax", MUTANT.file, "a + b", "a +", "Nothing starts."), True, "tests/unit/product/test_sums.py", LIKELY),
    ],
)
def test_the_first_failing_test_is_named(project, tmp_path_factory, mutant, first_only, caught, tried):
    scratch = mutants.Scratch(tmp_path_factory.mktemp("scratch"))
    trial = mutants.Trial(scratch, [["tests/unit", "-q"], ["tests/slow", "-q"]], first_only)
    result = trial.run(mutant)
    assert (result.caught_by, result.tried) == (caught, tried)
    assert (scratch.root / mutant.file).read_text() == (project / mutant.file).read_text()


def test_no_mutant_is_noticed_by_others(project, tmp_path_factory, monkeypatch):
    """Neither by the text that is no longer there nor by a test that fails anyway; one that does not end has noticed it."""
    (project / mutants.OWN).write_text("def test_applies():\n    assert 'a + b' in open('product/sums.py').read()\n")
    path = project / "tests/unit/product/test_sums.py"
    path.write_text(path.read_text().replace("== 2", "== 3"))
    subprocess.run(["git", "add", "."], cwd=project, check=True)
    trial = mutants.Trial(mutants.Scratch(tmp_path_factory.mktemp("scratch")), [["tests/unit", "-q"]], first_only=True)
    result = trial.run(MUTANT)
    assert result.caught_by == ""
    assert result.tried == "invalid: tests/unit/product/test_sums.py::test_adds fails without it, too"
    monkeypatch.setattr(mutants, "LIKELY_S", 0.0)
    assert trial.run(MUTANT).caught_by.startswith("no end within 0 s: tests/unit/product/test_sums.py")


LAB = Mutant("unplugged", "product/sums.py", "b", "c", "Nothing | at all.", "lab::tests/lab/test_cluster.py::test_unplugged")


@pytest.mark.parametrize(
    ("result", "first_only", "again"),
    [
        (None, True, True),
        (Result(MUTANT.digest, LIKELY, "tests/x.py::test_y", 1.0), False, False),
        (Result(MUTANT.digest, LIKELY, "", 1.0), True, False),
        (Result(MUTANT.digest, LIKELY, "", 1.0), False, True),
        (Result(MUTANT.digest, ALL, "", 1.0), False, False),
        (Result("of an earlier one", ALL, "tests/x.py::test_y", 1.0), True, True),
    ],
)
def test_earlier_results_are_used(result, first_only, again):
    assert left([MUTANT, LAB], {MUTANT.name: result} if result else {}, first_only) == ([MUTANT] if again else [])


def test_the_page_names_what_is_not_noticed():
    other = Mutant("factor", "product/sums.py", "a", "2 * a", "Twice as much.")
    results = {"sign": Result(MUTANT.digest, ALL, "tests/x.py::test_y", 1.25), "factor": Result(other.digest, ALL, "", 9.0)}
    assert report([MUTANT, other, LAB], results) == [
        ("sign", "tests/x.py::test_y", "1.2"),
        ("factor", "no test (all)", "9.0"),
        ("unplugged", f"{LAB.caught_by} (not run)", ""),
    ]
    written = page([MUTANT, other, LAB], results)
    assert "Not noticed: factor." in written
    assert r"| Nothing \| at all. |" in written


def test_the_page_names_tests_that_exist():
    named = re.findall(r"(tests/[\w/]+\.py)::(?:Test\w+::)?(test_\w+)", mutants.PAGE.read_text(encoding="utf-8"))
    assert len(named) > 150
    assert [(file, test) for file, test in named if f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8")] == []
