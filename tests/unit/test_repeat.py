"""Suites that run again and again: what pytest reports, and that nothing goes on afterwards."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import repeat, suites

REPORT = """<?xml version="1.0"?>
<testsuites><testsuite>
  <testcase classname="tests.unit.test_x.TestSums" name="test_adds[1]" file="tests/unit/test_x.py">
    <failure message="assert 1 == 2&#10;more"/></testcase>
  <testcase classname="tests.unit.test_x" name="test_passes" file="tests/unit/test_x.py"/>
  <testcase classname="tests.unit.test_x" name="test_skipped" file="tests/unit/test_x.py"><skipped message="no pyarrow"/></testcase>
  <testcase classname="tests.unit.test_x" name="test_torn_down" file="tests/unit/test_x.py"/>
  <testcase classname="tests.unit.test_x" name="test_torn_down" file="tests/unit/test_x.py">
    <error message="failed on teardown"/></testcase>
  <testcase classname="" name="tests.unit.test_y" file="tests/unit/test_y.py"><error message="collection failure"/></testcase>
</testsuite></testsuites>
"""


def test_every_failure_of_any_run_is_counted(tmp_path):
    """By the name that pytest takes, the most frequent first."""
    report, failures = tmp_path / "report.xml", repeat.Failures()
    report.write_text(REPORT)
    assert suites.failed(report) == {
        "tests/unit/test_x.py::TestSums::test_adds[1]": "assert 1 == 2",
        "tests/unit/test_x.py::test_torn_down": "failed on teardown",
        "tests/unit/test_y.py": "collection failure",
    }
    for run in ("1", "2"):
        failures.add(1, report, Path(run))
    report.write_text(REPORT.replace("test_adds[1]", "test_other"))
    failures.add(1, report, Path("3"))
    table = failures.told(3)
    assert table.startswith("3 of 3  tests/unit/test_x.py::test_torn_down\n    1, 2, 3\n")
    assert "2 of 3  tests/unit/test_x.py::TestSums::test_adds[1]\n    1, 2\n" in table


@pytest.mark.parametrize(
    ("code", "words"), [(0, "1 of 1 runs passed"), (1, "ended before all tests had run: out.log"), (-9, "ended before ")]
)
def test_a_run_that_breaks_off_has_failed(code, words, tmp_path):
    failures = repeat.Failures()
    failures.add(code, tmp_path / "absent.xml", Path("out.log"))
    assert (bool(failures), failures.told(1).startswith(words)) == (code != 0, True)


def test_a_busy_process_ends_with_its_parent():
    """Even if that is killed: its output ends once all that could write to it have ended."""
    program = (
        "import os\nfrom tests import repeat\nwith repeat.busy() as spinning: print(len(spinning), flush=True), os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=suites.ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == f"{repeat.BUSY}\n"


@pytest.mark.parametrize(
    ("arguments", "first", "runs"), [([], "tests/unit", 10), (["3", "tests/unit/test_repeat.py"], "tests/unit/test_repeat.py", 3)]
)
def test_the_suite_is_that_of_make_test(arguments, first, runs, monkeypatch):
    called = []
    monkeypatch.setattr(repeat, "repeat", lambda *given: called.append(given) or repeat.Failures())
    assert repeat.main(arguments) == 0
    ((count, commands, _),) = called
    assert (count, commands[0]) == (runs, [first, "-q", "-n", "3", "--dist", "loadfile", "--durations=10"])


@pytest.mark.parametrize(
    ("asked", "message"), [("tests/absent", "tests/absent: there is no such file"), ("docs", "make test runs nothing of docs")]
)
def test_what_is_no_suite_is_refused(asked, message, capsys):
    assert repeat.main([asked]) == 2
    assert message in capsys.readouterr().err


def test_each_runs_output_and_code_are_kept(tmp_path, monkeypatch):
    (tmp_path / "test_flaky.py").write_text(
        "from pathlib import Path\n\ndef test_flaky():\n    first = Path('first')\n    assert first.exists(), first.touch()\n"
    )
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    failures = repeat.repeat(2, [["test_flaky.py", "-q"]], tmp_path / "kept")
    assert failures.tests == {"test_flaky.py::test_flaky": [tmp_path / "kept" / "run-01-1.log"]}
    assert "1 passed" in (tmp_path / "kept" / "run-02-1.log").read_text()
