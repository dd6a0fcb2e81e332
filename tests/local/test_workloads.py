"""The course workloads through the playbooks: runs in steps, networks that keep means and draw numbers, runs listed and deleted."""

import csv
import shlex
import shutil

import numpy as np
import pytest

from tests.local.test_train import rows
from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE, ROOT
from trainer.telemetry import chief_records

RESNET = (
    "set=model.layers=8,train.global_batch=20,train.steps_per_call=2,optimizer.learning_rate=0.01,checkpoint.every_steps=3,"
    "telemetry.profile_every=4,telemetry.log_every=2"
)


def train(project: LocalProject, pictures, name: str, steps: int, *more: str, **options):
    asked = ("config=resnet_cifar", f"dataset={pictures}", f"{RESNET},train.steps={steps}", "preflight=false")
    return project.play("train", f"run={name}", *asked, *more, **options)


@pytest.fixture(scope="module")
def straight(project, pictures):
    """Fourteen steps at once, evaluated at the end."""
    return train(project, pictures, "job-straight", 14, "evaluate=true")


def test_a_run_of_more_steps_continues_and_ends_like_one_that_took_them_at_once(project, pictures, straight):
    """With normalisation, penalties, varied images; stopped inside an epoch of eight steps."""
    first = train(project, pictures, "job", 7)
    assert project.summary("job")["steps"] == 7
    assert "-e set=train.steps=14" in first.stdout
    assert "Evaluate" not in first.stdout
    again = train(project, pictures, "job", 14)
    assert "job: SUCCEEDED" in again.stdout
    before, after = project.summary("job-straight"), project.summary("job")
    assert (after["steps"], after["restarts"]) == (14, 1)
    assert after["weights_sha256"] == before["weights_sha256"]
    assert len(set(after["weights_sha256_by_rank"])) == 1
    states = [dict(np.load(max((project.run(name) / "state").glob("step-*.npz")))) for name in ("job-straight", "job")]
    for key in states[0].keys() - {"progress"}:
        assert (states[0][key] == states[1][key]).all()
    for name, summary in (("job-straight", before), ("job", after)):
        # An epoch of 144 images, and six steps of the next.
        seconds = sum(row["seconds"] for row in rows(project, name))
        assert summary["images_per_s"] == pytest.approx((144 + 6 * 20) / seconds, rel=0.01)


def test_training_lasts_from_its_beginning_to_the_end_and_states_are_saved_meanwhile(project, straight):
    phases = [record for record in chief_records(project.run("job-straight")) if record["kind"] == "phase"]
    begun = next(record["t"] for record in phases if record["phase"] == "training")
    assert [record["note"] for record in phases if record["phase"] == "saving"] == [
        "step 3",
        "step 6",
        "epoch 1",
        "step 9",
        "step 12",
        "epoch 2",
    ]
    # The clock of records is not the one that training is timed by; the last record follows TensorFlow's end.
    last_save = max(record["t"] for record in phases if record["phase"] == "saving")
    assert last_save - begun - 0.5 <= project.summary("job-straight")["seconds_training"] <= phases[-1]["t"] - begun + 0.5


def test_steps_are_told_in_the_log_and_the_end_is_evaluated(project, straight):
    log = (project.run("job-straight") / "workers" / "worker1" / "worker.log").read_text()
    assert "\nstep 2: " in log
    assert "\nstep 14: " in log
    assert "--- Evaluate on the chief" in straight.stdout
    assert "job-straight on its test images" in straight.stdout
    with (project.run("job-straight") / "evaluations.csv").open() as stream:
        (row,) = csv.DictReader(stream)
    assert (row["epoch"], row["split"], row["images"]) == ("2", "test", "60")


def test_a_complete_run_is_evaluated_when_asked_again(project, pictures, straight):
    again = train(project, pictures, "job-straight", 14, "evaluate=true")
    assert "Nothing to do: 2 epochs are done already." in again.stdout
    assert "job-straight on its test images" in again.stdout


@EXHAUSTIVE
def test_draws_follow_from_the_step(project, pictures):
    """Dropout and Adam: a run of two workers that is continued ends like one that was not."""
    asked = ("config=fashion_cnn", f"dataset={pictures}", "preflight=false")
    settings = "set=train.global_batch=20,train.steps_per_call=3,data.validation_split=0.2,reduction.name=packed,train.steps="
    for name, targets in (("dropped", (9,)), ("dropped-twice", (4, 9))):
        for steps in targets:
            project.play("train", f"run={name}", *asked, f"{settings}{steps}")
    ends = [project.summary(name)["weights_sha256"] for name in ("dropped", "dropped-twice")]
    assert ends[0] == ends[1]


def test_a_run_is_listed_and_deleted_but_not_while_it_is_under_way(project, pictures, straight):
    train(project, pictures, "listed", 2)
    listed = project.play("status", "run=job-straight").stdout
    (line,) = [line for line in listed.splitlines() if line.strip().startswith("listed ")]
    assert line.split()[1] == "SUCCEEDED"
    train(project, pictures, "going", 100_000, "detach=true")
    try:
        refused = project.play("playbooks/delete_run", "run=going", check=False)
        assert "run=going is under way on worker1, worker2; stop it first" in refused.stdout
        assert project.run("going").is_dir()
    finally:
        project.play("stop", "run=going")
    assert "would be deleted" in project.play("playbooks/delete_run", "run=listed", "--check").stdout
    assert project.node(2, "listed").is_dir()
    for name in ("listed", "going"):
        assert f"{name}: deleted" in project.play("playbooks/delete_run", f"run={name}").stdout
        assert not project.run(name).exists()
        assert not project.node(1, name).exists()
        assert not project.node(2, name).exists()
    assert "run: missing; say which with -e run=NAME" in project.play("playbooks/delete_run", check=False).stdout


@pytest.mark.parametrize(
    ("number", "shown", "metric", "least"),
    [(1, "most often taken for", "accuracy", 0.9), pytest.param(2, "mine on its test examples", "mae", 0.0, marks=EXHAUSTIVE)],
)
def test_the_examples_of_the_page_about_ones_own_model_and_data_train_as_they_stand(number, shown, metric, least, project):
    page = (ROOT / "docs" / "own.md").read_text(encoding="utf-8").replace("\\\n", "")
    code, after = page.split("```python\n")[number].split("```")[:2]
    shutil.rmtree(project.run("mine"), ignore_errors=True)
    for worker in (1, 2):
        shutil.rmtree(project.node(worker, "mine"), ignore_errors=True)
    (project.root / "mine.py").write_text(code)
    commands = [line.strip() for line in after.split("\n\n")[1 if number == 2 else 2].splitlines()]
    assert len(commands) == 2
    for command in commands:
        _, playbook, *words = shlex.split(command)
        done = project.play(playbook.removesuffix(".yml"), *(word for word in words if word != "-e"))
    assert shown in done.stdout
    with (project.run("mine") / "evaluations.csv").open() as stream:
        assert least < float(next(csv.DictReader(stream))[metric]) < 1.5
