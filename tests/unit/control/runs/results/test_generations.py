"""Marks by which the watchers of a run's hosts know its chief."""

import pytest

from control.remote.worker_access import clear_marks
from control.runs.results.generations import Generations

HOSTS = ["a", "b", "c"]


def chief_of(folder, **marks):
    for host, (number, members) in marks.items():
        Generations(folder).note(host, {"number": number, "hosts": list(members)})
    return Generations(folder).chief(HOSTS, len(HOSTS))


@pytest.mark.parametrize(
    ("marks", "chief"),
    [
        ({}, "a"),
        ({"a": (1, "abc")}, "a"),
        ({"a": (1, "abc"), "b": (2, "bc")}, ""),
        ({"a": (1, "abc"), "b": (2, "bc"), "c": (2, "bc")}, "b"),
        ({"a": (3, "abc"), "b": (3, "abc"), "c": (2, "bc")}, "a"),
        ({"a": (2, "ab"), "b": (3, "ab"), "c": (1, "abc")}, ""),
    ],
)
def test_the_chief_is_whom_enough_hosts_name(marks, chief, tmp_path):
    assert chief_of(tmp_path / "run", **marks) == chief


@pytest.mark.parametrize("lie", [(10**8, "c"), (2, "cab"), (1, "c"), (10**8, ""), (10**8, ["../x"])])
def test_one_host_that_lies_is_not_believed(lie, tmp_path):
    assert chief_of(tmp_path, a=(1, "abc"), b=(1, "abc"), c=lie) == "a"


def test_host_outside_the_launch_is_no_chief(tmp_path):
    assert chief_of(tmp_path, a=(2, ["z"]), b=(2, ["z"]), c=(2, ["z"])) == ""


def test_another_launch_begins_anew(tmp_path):
    marks = Generations(tmp_path)
    chief_of(tmp_path, a=(2, "bc"), b=(2, "bc"), c=(2, "bc"))
    marks.note_end()
    assert marks.is_over()
    clear_marks(tmp_path)
    assert (marks.chief(HOSTS, len(HOSTS)), marks.is_over()) == ("a", False)
