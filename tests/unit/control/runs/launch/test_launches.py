"""What is written of a launch, and read again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from control.common.plan import Plan
from control.runs.launch import launches
from control.runs.launch.launches import launched_at, refuse_changes
from control.runs.planning import plan_command
from tests.unit.refusals import refusal
from trainer.rundir.launch_record import Host


def test_when_run_was_launched_is_in_its_record(tmp_path):
    assert launched_at(str(tmp_path / "new")) == 0
    (tmp_path / "cluster.json").write_text('{"launched_at": 17.5}')
    assert launched_at(str(tmp_path)) == 17.5


PLAN = Plan(run="old", folder=Path("old"), command="train", typed="-e run=old -e epochs=90", changes=["train.epochs=90 (it has 60)"])


def test_other_options_for_a_training_run_are_refused():
    assert refusal(refuse_changes, PLAN, ["pi1", "pi2"], "epoch 12 of 60") == (
        "train.epochs=90 (it has 60): run=old is under way on pi1, pi2 (epoch 12 of 60), and such a run keeps the options it was "
        "started with; nothing was changed.\n"
        "Fix: stop it (ansible-playbook stop.yml -e run=old), then continue it with the change: "
        "ansible-playbook train.yml -e run=old -e epochs=90\n"
        "or wait for its end, then: ansible-playbook train.yml -e run=old -e epochs=90\n"
        "To watch it as it is: ansible-playbook train.yml -e run=old"
    )


def test_equal_options_or_an_ended_run_are_accepted():
    """Nothing is refused where nothing differs or nobody trains."""
    refuse_changes(PLAN, [])
    refuse_changes(replace(PLAN, changes=[]), ["pi1"])


def test_what_was_typed_is_typed_again():
    assert plan_command.typed({"epochs": "90", "run": "old"}, "old") == "-e run=old -e epochs=90"
    assert plan_command.typed({"dataset": "my pictures", "set": "a.b=[1,2]"}, "new") == (
        "-e run=new -e 'dataset=\"my pictures\"' -e 'set=a.b=[1,2]'"
    )


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """Launches of this test alone, as of a command with an inventory."""
    monkeypatch.setattr(launches, "BEGUN", tmp_path / "launches")
    monkeypatch.setattr(launches, "_inventory", lambda: ["/inventory"])

    def begin(nonce="ab", run="r", parent="runs", resume=False):
        folder = tmp_path / parent / run
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cluster.json").write_text("{}")
        hosts = [Host(name="pi1"), Host(name="pi2")]
        return launches.begin(Plan(nonce=nonce, run=run, folder=folder, resume=resume, asked_yaml="seed: 2\n", hosts=hosts))

    return begin


def gone(launch):
    """As if the command that launched had ended; its number may be another process's by now."""
    path = launches.BEGUN / f"{launch['id']}.json"
    path.write_text(json.dumps(launch | {"launcher": launch["launcher"] | {"began": "1"}}))


def test_launch_is_broken_off_with_its_command(begun, monkeypatch):
    launch = begun()
    assert launches.broken(["pi1", "pi2"]) == []
    gone(launch)
    # What a killed process was about to write.
    (launches.BEGUN / ".part-x.json").touch()
    (actual,) = launches.broken(["pi2", "pi3"])
    assert (actual["run"], actual["hosts"]) == ("r", ["pi2"])
    monkeypatch.setattr(launches, "_inventory", lambda: ["/another"])
    assert launches.broken(["pi1", "pi2"]) == []


def test_launch_is_over_when_all_or_none_run(begun, tmp_path):
    one, other = begun("aa"), begun("bb", run="q")
    gone(one)
    gone(other)
    launches.end(one)
    assert [launch["run"] for launch in launches.broken(["pi1"])] == ["q"]
    launches.end_all(tmp_path / "doctor" / "q")
    assert launches._is_noted(other)
    launches.end_all(tmp_path / "runs" / "q")
    assert not launches._is_noted(other)


def test_a_sweep_ends_its_trials_itself(begun):
    gone_or_not = begun(parent="sweeps/pi/trials")
    assert not launches._is_noted(gone_or_not)


def test_run_that_never_ran_leaves_what_was_asked(begun, tmp_path):
    launches.forget_start(begun())
    folder = tmp_path / "runs" / "r"
    assert not (folder / "cluster.json").exists()
    assert (folder / "config.yml").read_text() == "seed: 2\n"
    assert json.loads((folder / "summary.json").read_text()) == {"state": "CANCELLED", "workers": 2}


@pytest.mark.parametrize(("resume", "summary"), [(True, None), (False, {"state": "RUNNING"})])
def test_run_that_ran_before_stays_as_it_is(begun, tmp_path, resume, summary):
    launch, folder = begun(resume=resume), tmp_path / "runs" / "r"
    if summary:
        (folder / "summary.json").write_text(json.dumps(summary))
    before = sorted(path.name for path in folder.iterdir())
    launches.forget_start(launch)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_record_of_another_launch_is_kept(begun, tmp_path):
    launch = begun()
    (tmp_path / "runs/r/summary.json").write_text('{"state": null}')
    (tmp_path / "runs/r/cluster.json").write_text('{"launch": "cd"}')
    launches.forget_start(launch)
    assert (tmp_path / "runs/r/cluster.json").is_file()
