"""Which launches check their hosts again, after an earlier one whose hosts passed."""

from dataclasses import replace
from pathlib import Path

import pytest

from control.common.plan import Plan
from control.runs.launch import recent_check
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


@pytest.mark.parametrize("content", ["", "[]", '{"at": 1}', '{"at": "now", "places": [], "needs": {}, "text": ""}'])
def test_damaged_note_means_to_check(content, clock, tmp_path):
    (tmp_path / "checked.json").write_text(content)
    assert recent_check.passed(planned(), clock) is None


@pytest.mark.parametrize(("well", "left"), [(True, True), (False, False)])
def test_failed_run_has_hosts_checked_again(well, left, clock):
    noted(clock)
    recent_check.keep_if(well)
    assert bool(recent_check.passed(planned(), clock)) == left


def test_another_inventory_is_checked(clock, monkeypatch):
    """It may name another user or key for the same hosts."""
    noted(clock)
    monkeypatch.setattr(recent_check.context, "CLIARGS", {"inventory": ["/other"]})
    assert recent_check.passed(planned(), clock) is None
