"""Which exhaustive tests a change triggers, and how they are run."""

import subprocess

import pytest

from tests.exhaustive import Collector, Exhaustive, changed_since, commands, listing

FIREWALL = Exhaustive("tests/lab/test_a.py::test_ports[1-2]", ("roles/firewall", "trainer/network/sockets_all_reduce.py"), alone=False)
ANYTHING = Exhaustive("tests/training/test_b.py::test_all", (), alone=False)
ALONE = Exhaustive("tests/training/test_b.py::test_clock", ("trainer",), alone=True)


@pytest.mark.parametrize(
    ("test", "changed", "triggered"),
    [
        (FIREWALL, ["roles/firewall/tasks/main.yml"], True),
        (FIREWALL, ["trainer/network/sockets_all_reduce.py"], True),
        (FIREWALL, ["tests/lab/test_a.py"], True),
        (FIREWALL, ["roles/firewalls/tasks/main.yml", "trainer/direct.pyc", "tests/lab/conftest.py"], False),
        (ANYTHING, ["README.md"], True),
        (ANYTHING, [], False),
    ],
)
def test_a_change_in_its_paths_triggers_a_test(test, changed, triggered):
    assert test.triggered(changed) is triggered


MODULE = """
import pytest
TRIGGERS = ("roles/worker",)

@pytest.mark.exhaustive
def test_plain(): pass

@pytest.mark.exhaustive("roles/dfs", "trainer")
@pytest.mark.alone
def test_named(): pass

@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.exhaustive("roles/moved"))])
def test_variant(n): pass
"""


def test_paths_are_the_markers_else_the_modules(tmp_path, monkeypatch):
    """A path that is gone is refused."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_in_it.py").write_text(MODULE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  exhaustive: x\n  alone: x\n")
    collector = Collector()
    pytest.main(["-p", "no:terminal", "-p", "no:cacheprovider", "--collect-only", str(tmp_path)], plugins=[collector])
    assert [(test.name.partition("::")[2], test.paths, test.alone) for test in collector.tests] == [
        ("test_plain", ("roles/worker",), False),
        ("test_named", ("roles/dfs", "trainer"), True),
        ("test_variant[2]", ("roles/moved",), False),
    ]
    assert collector.errors == ["test_in_it.py::test_variant[2]: there is no roles/moved to trigger it"]


def test_changes_are_committed_uncommitted_and_new(tmp_path):
    def git(*words):
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True)

    git("init")
    for name in ("old", "moved", "edited"):
        (tmp_path / name).write_text(name)
    git("add", "-A")
    git("commit", "-m", "first")
    git("mv", "moved", "there")
    git("commit", "-m", "second")
    (tmp_path / "edited").write_text("anew")
    (tmp_path / "new").write_text("new")
    assert sorted(changed_since("HEAD~1", tmp_path)) == ["edited", "moved", "new", "there"]
    with pytest.raises(SystemExit, match="SINCE=nowhere: "):
        changed_since("nowhere", tmp_path)


def test_hosts_and_tests_alone_have_their_own_process():
    assert listing([ANYTHING, ALONE]) == (
        "any file:\n  tests/training/test_b.py::test_all\ntrainer:\n  tests/training/test_b.py::test_clock"
    )
    assert [" ".join(words) for words in commands([FIREWALL, ALONE, ANYTHING], 3)] == [
        "-q --durations=10 -n 3 --dist loadfile tests/training/test_b.py::test_all",
        "-q --durations=10 tests/training/test_b.py::test_clock",
        "-q --durations=10 tests/lab/test_a.py::test_ports[1-2]",
    ]
