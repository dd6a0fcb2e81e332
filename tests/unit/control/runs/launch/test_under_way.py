"""A run whose directory is deleted while it trains."""

import shutil

import pytest

from control.common import project
from control.runs.launch import under_way
from trainer.common.errors import ConfigError


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The directory of a run that was just launched."""
    monkeypatch.setattr(project, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(under_way, "COPIES", tmp_path / "copies")
    folder = tmp_path / "runs/r"
    folder.mkdir(parents=True)
    (folder / "cluster.json").write_text('{"id": "ab"}')
    (folder / "config.yml").write_text("seed: 2\n")
    under_way.keep(folder)
    return folder


def test_deleted_run_is_made_again(run):
    shutil.rmtree(run)
    assert under_way.restore("r").endswith("its record is restored, and results follow from its hosts")
    assert {path.name: path.read_text() for path in run.iterdir()} == {"cluster.json": '{"id": "ab"}', "config.yml": "seed: 2\n"}
    assert under_way.restore("r") == ""


def test_what_is_there_stays(run):
    (run / "config.yml").write_text("seed: 3\n")
    (run / "cluster.json").unlink()
    assert under_way.restore("r") == ""
    assert [path.name for path in run.iterdir()] == ["config.yml"]


def test_run_that_ended_is_not_made_again(run):
    under_way.forget(run)
    shutil.rmtree(run)
    assert under_way.restore("r") == ""
    assert not run.exists()


def test_runs_of_commands_leave_no_copy(run, tmp_path):
    trial = tmp_path / "sweeps/s/trials/t"
    shutil.copytree(run, trial)
    under_way.keep(trial)
    assert [path.name for path in under_way.COPIES.iterdir()] == ["r"]


def test_name_stays_in_its_folder(run):
    with pytest.raises(ConfigError, match=r"run=\.\./r: a run name is"):
        under_way.restore("../r")
