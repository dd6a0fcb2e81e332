"""What forbids that a run is deleted, and how several are."""

import pytest

from control.common import project
from control.common.task import Task
from control.runs.tasks import deletion, several
from tests.unit.refusals import refusal


@pytest.mark.parametrize("queued", [{}, {"rc": 0, "stdout": "", "stderr": ""}, {"rc": 2, "msg": "no squeue"}])
def test_without_a_job_it_may_go(queued):
    deletion.judge(Task({"run": "r", "seen": [], "queued": queued}))


@pytest.mark.parametrize(
    ("queued", "message"),
    [
        ({"rc": 0, "stdout": "7\n8\n", "stderr": ""}, "run=r: job 7 8 of Slurm is queued or runs; end it first: scancel 7 8"),
        ({"rc": 1, "stdout": "", "stderr": "no controller"}, "run=r: Slurm does not report whether it has a job: no controller"),
    ],
)
def test_silent_job_and_queue_are_told(queued, message):
    assert refusal(deletion.judge, Task({"run": "r", "seen": [], "queued": queued})) == message


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setattr(project, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(project, "PRIVATE", tmp_path)
    for name in ("old", "test-1", "test-2", "New"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.yml").touch()
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("asked", "names"),
    [("old,", ["old"]), ("test-*", ["test-1", "test-2"]), ("test-?,old,test-1", ["test-1", "test-2", "old"]), ("N*,o*", ["New", "old"])],
)
def test_several_runs_are_named(runs, asked, names):
    assert deletion.names_several(asked)
    assert deletion._matching(asked) == names


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("old,tets-1", "run=tets-1: no such run (did you mean test-1?)"),
        ("x*", "run=x*: no such run"),
        ("../*", "'../*' is no name of a run"),
    ],
)
def test_name_of_no_run_deletes_none(runs, asked, message):
    assert message in refusal(deletion.delete, asked, True)


def test_several_are_listed_first(runs):
    shown = deletion.delete("test-*", False)["show_last"]
    assert shown.startswith("2 runs would be deleted; nothing was\n")
    assert shown.endswith("ansible-playbook playbooks/delete_run.yml -e 'run=test-*' -e confirm=true")
    (runs / "old" / "cluster.json").write_text('{"launched_at": 1800000000.0, "dataset": {}}')
    columns, row = deletion.delete("old,", False)["show_last"].splitlines()[1:3]
    assert "images/s" in columns
    assert "2027-01-1" in row


@pytest.mark.parametrize(("check", "last"), [(True, "playbooks/delete_run.yml -e run=old"), (False, "status.yml")])
def test_check_names_the_command_that_deletes(runs, check, last):
    shown = deletion.forget(Task({"run": "old"}, check_mode=check))["show_last"]
    assert shown.endswith(f"ansible-playbook {last}")


def test_run_that_stays_is_named(runs, monkeypatch):
    class Child:
        def __init__(self, path, variables, log):
            self.name, self.log = variables["run"], log

        def run(self, ended):
            self.log.write_text(f"run={self.name} is under way\n")
            return self.name == "test-1"

    monkeypatch.setattr(several, "Playbook", Child)
    monkeypatch.setattr(several.command_line, "inventory_overrides", lambda command: {})
    assert refusal(deletion.delete, "test-*", True) == "1 of 2 runs were not deleted\ntest-1:\n  run=test-1 is under way"
    assert deletion.delete("old,New", True)["show_last"].startswith("2 runs deleted: old, New\n")
