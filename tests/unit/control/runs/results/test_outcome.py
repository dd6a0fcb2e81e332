"""A worker's verdict on its way through Ansible, and what becomes of a run that was stopped."""

import pytest

from control.common.task import Task
from control.runs.results import outcome
from control.runs.results.outcome import Verdict, Verdicts
from control.runs.results.summary import Summary
from control.runs.tasks import conclude as concluding
from trainer.common.errors import DIVERGED, FAILED, PREEMPTED, RESTART
from trainer.common.files import read_json, write_json


@pytest.mark.parametrize("failure", [None, "x", {}, {"host": "a"}, [1]])
def test_a_failure_that_no_command_wrote_is_none(failure):
    """A node's own summary.json must not keep all commands from reading it."""
    assert Summary.of({"state": "FAILED", "failure": failure}).failure is None


def test_verdict_survives_its_way_through_ansible():
    """A verdict is the same after its way through ansible and carries only what is known."""
    verdict = Verdict("node01", 0, "running", "starting", 0, 5.0, phases_began={})
    assert verdict.to_dict() == {
        "host": "node01",
        "rank": 0,
        "state": "running",
        "phase": "starting",
        "step": 0,
        "at": 5.0,
        "ended_by_us": False,
        "phases_began": {},
    }
    assert Verdict(**verdict.to_dict()) == verdict


@pytest.mark.parametrize(
    ("code", "cancelled", "state"),
    [(PREEMPTED, True, "CANCELLED"), (PREEMPTED, False, "PREEMPTED"), (137, True, "CANCELLED"), (137, False, "FAILED")]
    + [(code, cancelled, "FAILED") for code in (FAILED, DIVERGED) for cancelled in (True, False)],
)
def test_stopped_run_failed_only_if_a_worker_erred(code, cancelled, state):
    """A run that was stopped has failed only if a worker reports an error of its own."""
    ends = [Verdict("node01", 0, outcome.of_exit_code(code), exit_code=code), Verdict("node02", 1, "preempted", exit_code=PREEMPTED)]
    assert Verdicts(ends).run_state("RUNNING", cancelled) == state


@pytest.fixture
def stopped_run(tmp_path, monkeypatch):
    """A run's folder, and a task that concludes its stop from the workers' exit codes."""
    monkeypatch.setattr(concluding.project, "RUNS", tmp_path)
    monkeypatch.setattr(concluding.launches, "end_all", lambda folder: None)
    write_json(tmp_path / "full" / "summary.json", {"state": "RUNNING"})

    def conclude(*codes, away=0):
        ends = [Verdict(f"node{rank}", rank, outcome.of_exit_code(code), exit_code=code, last_lines=[]) for rank, code in enumerate(codes)]
        hosts = [*(end.host for end in ends), *(f"away{number}" for number in range(away))]
        lost = {"unreachable": True, "msg": "no route to host", "changed": False}
        stopped, watched = [{"changed": True}] * len(codes) + [lost] * away, {end.host: end.to_dict() for end in ends}
        task = Task({"run": "full", "hosts": hosts, "stopped": stopped, "watched": watched})
        return concluding.conclude_stop(task), read_json(tmp_path / "full" / "summary.json")

    return conclude


def test_stop_that_saves_no_state_fails_with_why(stopped_run):
    result, summary = stopped_run(FAILED, PREEMPTED)
    assert (result["failed"], summary["state"]) == (True, "FAILED")
    assert (summary["failure"]["host"], summary["failure"]["exit_code"]) == ("node0", FAILED)
    assert result["msg"].startswith("First failure: node0 (rank 0) ended with exit code 1\n")


def test_worker_that_had_to_be_killed_was_stopped(stopped_run):
    result, summary = stopped_run(137, PREEMPTED)
    assert (summary["state"], "failure" in summary) == ("CANCELLED", False)
    assert "failed" not in result


@pytest.mark.parametrize("supervised", [True, False])
def test_absent_host_is_named_and_others_stopped(supervised, stopped_run, tmp_path):
    (tmp_path / "full" / "config.yml").write_text(f"recovery: {{max_restarts: {5 * supervised}, rejoin_wait: 300.0}}\n")
    result, summary = stopped_run(PREEMPTED, PREEMPTED, away=1)
    assert (summary["state"], "failure" in summary) == ("CANCELLED", False)
    first = result["msg"].splitlines()[0]
    assert result["failed"]
    assert first.startswith("away0 can't be reached: its worker could not be stopped. Without the others ")
    assert ("its supervisor waits for the others, 300 s at most (recovery.rejoin_wait)" in first) is supervised
    assert first.endswith("Fix: once it is back, look at it: ansible-playbook stop.yml -e run=full")
    assert "full: CANCELLED" in result["msg"]


def test_a_host_where_the_stop_failed_is_unclear():
    verdict = concluding._verdict(2, "node2", {"failed": True, "msg": "tmux is missing"}, {})
    assert (verdict.state, verdict.rank, verdict.message) == ("unclear", 2, "tmux is missing")


def test_stop_that_reached_no_host_leaves_record(stopped_run):
    result, summary = stopped_run(away=2)
    assert summary == {"state": "RUNNING"}
    assert result["msg"].startswith("full: nothing was stopped. away0 and away1 can't be reached: their workers could not be stopped.")


def ends(*states):
    return Verdicts(Verdict(f"node{rank}", rank, state, at=100.0 + rank, step=7) for rank, state in enumerate(states))


@pytest.mark.parametrize(
    ("states", "after"),
    [
        (("done", "done", "gone"), ("done", "done", "lost")),
        (("unreachable", "done", "done"), ("lost", "done", "done")),
        (("running", "silent", "running"), ("running", "lost", "running")),
        (("done", "gone"), ("done", "lost")),
        (("gone", "done"), ("gone", "done")),
        (("gone", "gone", "done"), ("gone", "gone", "done")),
        (("done", "done", "unclear"), ("done", "done", "unclear")),
    ],
)
def test_host_is_lost_only_if_enough_went_on(states, after):
    assert tuple(verdict.state for verdict in ends(*states).without_lost(len(states))) == after


def test_who_waited_in_vain_is_lost_not_failed():
    waited, failed = (Verdict("node2", 2, "failed", exit_code=code) for code in (RESTART, FAILED))
    assert [Verdicts([*ends("done", "done"), one]).without_lost(3)[2].state for one in (waited, failed)] == ["lost", "failed"]


def test_a_spare_counts_if_it_has_trained():
    idle = Verdict("spare", 2, "failed", exit_code=RESTART, step=0)
    assert [one.host for one in Verdicts([*ends("done", "done"), idle]).without_lost(2)] == ["node0", "node1"]
    trained = Verdict("spare", 2, "done", exit_code=0, step=7)
    assert [one.state for one in Verdicts([*ends("done", "gone"), trained]).without_lost(2)] == ["done", "lost", "done"]
    assert [one.state for one in Verdicts([*ends("gone", "done"), trained]).without_lost(2)] == ["gone", "done", "done"], "no majority"


def test_an_elastic_run_without_a_host_has_succeeded():
    verdicts = ends("done", "unreachable", "done").without_lost(3)
    assert verdicts.root_cause is None
    assert verdicts.run_state("SUCCEEDED", False) == "SUCCEEDED"
    assert verdicts.lost == [{"host": "node1", "rank": 1, "step": 7, "at": 101.0}]
