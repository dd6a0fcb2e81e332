"""Which launches check their hosts again, after an earlier one whose hosts passed."""

from dataclasses import replace
from pathlib import Path

import pytest

from control.common import project
from control.common.plan import Plan
from control.common.task import Task
from control.runs.launch import launches, recent_check
from control.runs.results.outcome import Verdict, of_exit_code
from control.runs.tasks import launch
from control.runs.tasks.conclude import conclude
from tests.unit.report_samples import make_run
from trainer.common.errors import DONE, FAILED, PREEMPTED
from trainer.common.plain_values import to_plain
from trainer.rundir.launch_record import Host

NEEDS = {"memory_mb": 900, "disk_mb": 500}
HOSTS = [Host(name="a", address="10.0.0.1", port=1), Host(name="b", address="10.0.0.2", port=1, gpus=1)]


class Stopped:
    """A clock that a test sets."""

    now = 1_000_000.0

    def time(self):
        return self.now


@pytest.fixture
def clock(tmp_path, monkeypatch):
    monkeypatch.setattr(recent_check.project, "PRIVATE", tmp_path)
    return Stopped()


def planned(hosts=HOSTS, **needs):
    return replace(Plan(run="r", folder=Path("r")), hosts=list(hosts), needs=NEEDS | needs)


def noted(clock, text="2 hosts, 26 checks: 26 OK"):
    recent_check.note(planned(), text, clock)


@pytest.mark.parametrize(("seconds", "ago"), [(0, "0 s"), (59, "59 s"), (60, "1 min"), (599, "10 min")])
def test_passed_checks_count_for_minutes(seconds, ago, clock):
    noted(clock)
    clock.now += seconds
    assert recent_check.passed(planned(), clock) == f"2 hosts, 26 checks: 26 OK ({ago} ago)"


@pytest.mark.parametrize("seconds", [600, -1])
def test_later_they_do_not_count(seconds, clock):
    """Nor after this machine's clock was set back."""
    noted(clock)
    clock.now += seconds
    assert recent_check.passed(planned(), clock) is None


@pytest.mark.parametrize(
    "hosts",
    [
        pytest.param(HOSTS[:1], id="fewer"),
        pytest.param([HOSTS[0], replace(HOSTS[1], address="10.0.0.3")], id="another address"),
        pytest.param([HOSTS[0], replace(HOSTS[1], gpus=2)], id="more GPUs"),
        pytest.param([HOSTS[0], replace(HOSTS[1], environment={"A": "b"})], id="another environment"),
        pytest.param([HOSTS[0], replace(HOSTS[1], role="evaluator")], id="another role"),
        pytest.param([HOSTS[0], replace(HOSTS[1], name="c")], id="another name"),
    ],
)
def test_other_hosts_are_checked(hosts, clock):
    noted(clock)
    assert recent_check.passed(planned(hosts), clock) is None


def test_neither_ports_nor_order_count(clock):
    """A launch looks at its ports itself."""
    noted(clock)
    assert recent_check.passed(planned([replace(host, port=2) for host in reversed(HOSTS)]), clock)


@pytest.mark.parametrize(("needs", "counts"), [({"disk_mb": 501}, False), ({"disk_mb": 499}, True), ({"server_mb": 1}, False)])
def test_more_memory_or_disk_is_checked(needs, counts, clock):
    noted(clock)
    assert bool(recent_check.passed(planned(**needs), clock)) == counts


def test_without_a_note_hosts_are_checked(clock):
    recent_check.keep_if(False)
    assert recent_check.passed(planned(), clock) is None


@pytest.mark.parametrize("content", ["", "[]", '{"at": 1}', '{"at": "now", "places": [], "needs": {}, "text": ""}'])
def test_damaged_note_means_to_check(content, clock, tmp_path):
    (tmp_path / "checked.json").write_text(content)
    assert recent_check.passed(planned(), clock) is None


@pytest.mark.parametrize(("code", "left"), [(DONE, True), (PREEMPTED, True), (FAILED, False)])
def test_failed_run_has_hosts_checked_again(code, left, clock, tmp_path, monkeypatch):
    """Of the doctor's trial, too, whose workers are those of a training."""
    monkeypatch.setattr(project, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(launches, "BEGUN", tmp_path / "launches")
    folder = make_run(tmp_path / "trials", "one", names=("a",))
    recent_check.note(planned(), "OK")
    verdict = Verdict("a", 0, of_exit_code(code), exit_code=code, last_lines=[], at=5.0, phases_began={})
    conclude(Task({"plan": to_plain(Plan(run="one", folder=folder, run_kind="doctor")), "verdicts": [verdict.to_dict()]}))
    assert bool(recent_check.passed(planned())) == left


def test_launch_taken_back_has_hosts_checked_again(clock, tmp_path, monkeypatch):
    monkeypatch.setattr(launches, "BEGUN", tmp_path / "launches")
    recent_check.note(planned(), "OK")
    taken_back = {"id": "1", "run": "r", "folder": str(tmp_path / "r"), "asked_yaml": None, "hosts": ["a"]}
    launch.end(Task({"launch": taken_back, "started": False, "ended": {"a": {"changed": True}}}))
    assert recent_check.passed(planned()) is None


def test_another_inventory_is_checked(clock, monkeypatch):
    """It may name another user or key for the same hosts."""
    noted(clock)
    monkeypatch.setattr(recent_check.context, "CLIARGS", {"inventory": ["/other"]})
    assert recent_check.passed(planned(), clock) is None
