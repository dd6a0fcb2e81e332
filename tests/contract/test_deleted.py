"""A run whose directory on the control node is deleted while it trains, with its copy or without: no state is without a way out."""

import shutil

import pytest

from tests.contract.held import SMALL, await_held
from tests.project import await_until


def launched(project, pictures, name):
    """A run that trains, held before a step, and whose directory here is gone."""
    project.hold(name, 4)
    project.play("train", f"run={name}", f"dataset={pictures}", *SMALL, "epochs=1", "detach=true")
    await_held(project, name, 4)
    shutil.rmtree(project.run(name))


@pytest.fixture(scope="module")
def gone(project, pictures):
    """Deleted here by hand."""
    launched(project, pictures, "gone")
    return "gone"


@pytest.fixture(scope="module")
def foreign(project, pictures, gone):
    """As if it had been launched from another machine."""
    launched(project, pictures, "foreign")
    shutil.rmtree(project.root / ".lockstep/under_way/foreign")
    return "foreign"


def test_deleted_run_is_watched_to_its_end(project, gone):
    looked = project.play("status", f"run={gone}")
    assert "gone: RUNNING" in looked.stdout
    assert "its record is restored" in " ".join(looked.stderr.split())
    shutil.rmtree(project.run(gone))
    project.release(gone)
    done = project.play("train", f"run={gone}").stdout
    assert "gone: SUCCEEDED" in done
    assert project.summary(gone)["state"] == "SUCCEEDED"
    assert (project.run(gone) / "history.csv").is_file()
    assert not (project.root / ".lockstep/under_way/gone").exists()


def test_run_of_another_is_not_watched(project, pictures, foreign):
    refused = project.play("train", f"run={foreign}", f"dataset={pictures}", *SMALL, check=False)
    assert refused.returncode != 0
    assert "run=foreign: another run of that name trains on worker1, worker2, launched elsewhere; nothing was changed." in refused.stdout
    assert len(project.sessions(foreign)) == 2


def test_run_of_another_is_stopped_and_deleted(project, foreign):
    assert "foreign: RUNNING, launched elsewhere" in project.play("status", f"run={foreign}").stdout
    refused = project.play("playbooks/delete_run", f"run={foreign}", check=False)
    assert "run=foreign is under way on worker1, worker2; stop it first" in refused.stdout
    assert "foreign: stopped on worker1, worker2" in project.play("stop", f"run={foreign}").stdout
    await_until(lambda: not project.sessions(foreign), 60, "the end of its sessions")
    assert "foreign: deleted from worker1, worker2" in project.play("playbooks/delete_run", f"run={foreign}").stdout
    assert not project.node(1, foreign).exists()
    missing = project.play("playbooks/delete_run", f"run={foreign}", check=False)
    assert "run=foreign: no such run" in missing.stdout
    assert "No host holds a part of it" in missing.stdout
