"""What is said of a run that this machine has no record of."""

import pytest

from control.common import project
from control.common.task import Task
from control.runs.tasks import elsewhere
from tests.unit.refusals import refusal

JOB = {"run": "r", "state": "running", "session": "r-w0", "ticket": ""}
JOBS = {"pi1": {"jobs": [JOB]}, "pi2": {"jobs": []}, "pi3": {"unreachable": True}}


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setattr(project, "RUNS", tmp_path)
    (tmp_path / "rs").mkdir()
    (tmp_path / "rs/config.yml").touch()


def refused(function, **arguments):
    return refusal(function, Task({"run": "r", **arguments}))


def test_status_names_the_hosts_that_have_it():
    shown = elsewhere.look(Task({"run": "r", "command": "status", "jobs": JOBS}))["show_last"]
    assert [line.split() for line in shown.splitlines()[3:5]] == [["pi1", "running"], ["pi2", "-"]]
    assert "ansible-playbook stop.yml -e run=r" in shown


def test_run_under_way_is_not_deleted():
    assert refused(elsewhere.look, command="playbooks/delete_run", jobs=JOBS) == (
        "run=r is under way on pi1; stop it first: ansible-playbook stop.yml -e run=r"
    )
    away = refused(elsewhere.look, command="playbooks/delete_run", jobs={**JOBS, "pi1": {"jobs": []}})
    assert away == "run=r: pi3 can't be reached, and may hold a part of it; nothing was deleted"


@pytest.mark.parametrize("command", ["status", "stop"])
def test_run_that_no_host_has_is_none(command):
    assert refused(elsewhere.look, command=command, jobs={**JOBS, "pi1": {"jobs": []}}) == (
        "run=r: no such run (did you mean rs?); there are: rs. No worker of it is alive on the inventory's hosts; pi3 can't be reached"
    )


def test_what_was_stopped_or_deleted_is_said():
    done = {"pi1": {"changed": True, "ended": "ended"}, "pi2": {"changed": False, "ended": "absent"}}
    shown = elsewhere.conclude(Task({"run": "r", "command": "stop", "done": done}))["show_last"]
    assert shown.startswith("r: stopped on pi1; its states and results are there, in runs/r under worker_root.\n")
    done["pi2"] = {"unreachable": True, "msg": "timed out"}
    assert refused(elsewhere.conclude, command="stop", done=done).startswith("run=r: not on pi2 (timed out). Fix: the same command again")
    done = {"pi1": {"changed": True}, "pi2": {"changed": False}}
    assert elsewhere.conclude(Task({"run": "r", "command": "playbooks/delete_run", "done": done}))["show_last"] == "r: deleted from pi1"
    nothing = {"pi1": {"changed": False}, "pi2": {"changed": False}}
    assert refused(elsewhere.conclude, command="playbooks/delete_run", done=nothing).endswith("No host holds a part of it")
