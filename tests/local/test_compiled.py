"""Models that the user compiled, on columns, through the playbooks: the numbers of `fit`, exact resume, callbacks, what is refused."""

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE, ROOT, SLOWEST, await_until
from trainer import sealed

FILE = Path(__file__).with_name("compiled.py")
UNEVEN = "set=train.batch_sizes=[20,12],train.steps_per_call=2,telemetry.profile_every=0"
"""400 rows for training: 12.5 steps of 32 per epoch."""

# TensorFlow's settings of the workers must not reach the tests' own process.
BY_FIT = """
import importlib.util, json, sys
import keras
import numpy as np
from trainer import config as configs
from trainer.data.examples import open_examples
from trainer.data.manifest import Published
from trainer.data.partition import EpochPlan
from pathlib import Path
file, packs, caches, snapshot = map(Path, sys.argv[1:5])
cluster = json.loads(Path(sys.argv[5]).read_text())
spec = importlib.util.spec_from_file_location("compiled", file)
compiled = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compiled)
sha256 = cluster["dataset"]["manifest"]
manifest, splits = open_examples(Published(packs / sha256[:16], sha256), caches, configs.Data(), lambda *_: None)
counts = cluster["counts"]
chosen = manifest.order[counts["validation_images"]:][: counts["train_images"]]
keras.utils.set_random_seed(1)
model, logs = compiled.build(), []
for epoch in (1, 2):
    plan = EpochPlan(counts["train_images"], counts["global_batch"], counts["steps_per_epoch"], 1, epoch)
    rows = splits["train"].gather(chosen[np.concatenate([plan.union(step) for step in range(counts["steps_per_epoch"])])])
    logs.append(model.fit(*rows[:2], sample_weight=rows[2], batch_size=counts["global_batch"], shuffle=False, verbose=0).history)
trained = model.get_weights()
model.load_weights(snapshot)
apart = [float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(trained, model.get_weights(), strict=True)]
tested = model.evaluate(*splits["test"].gather(np.arange(100))[:2], sample_weight=splits["test"].gather(np.arange(100))[2], verbose=0)
predicted = model.predict(compiled.new(), verbose=0)[:, 0].tolist()
print(json.dumps({"apart": max(apart), "logs": logs, "tested": tested, "predicted": predicted}))
"""


def train(project: LocalProject, name: str, *more: str, model: str = "build", data: str = "data", **options):
    return project.play("train", f"run={name}", f"model={FILE}:{model}", f"dataset={FILE}:{data}", UNEVEN, *more, **options)


def rows(project: LocalProject, name: str) -> list[dict[str, float]]:
    with (project.run(name) / "history.csv").open() as stream:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(stream)]


@pytest.fixture(scope="module")
def two_epochs(project):
    """Two epochs on two workers with uneven parts of a step."""
    return train(project, "table", "epochs=2")


@pytest.fixture(scope="module")
def fitted(project, two_epochs, tmp_path_factory):
    """The same by Keras' own `fit` in one process."""
    run = project.run("table")
    packs, caches = project.root / ".lockstep" / "dfs" / "datasets", tmp_path_factory.mktemp("fitted")
    argv = [FILE, packs, caches, run / "checkpoints" / "epoch-0002.keras", run / "cluster.json"]
    done = subprocess.run([sys.executable, "-c", BY_FIT, *map(str, argv)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_two_workers_train_as_fit_does_with_the_global_batch(project, fitted):
    assert fitted["apart"] < 1e-4
    for row, logs in zip(rows(project, "table"), fitted["logs"], strict=True):
        assert row["loss"] == pytest.approx(logs["loss"][0], rel=1e-4)
        assert row["mae"] == pytest.approx(logs["mae"][0], rel=1e-4)


def test_its_rows_are_examples_wherever_they_are_counted(project, two_epochs):
    log = next(project.run("table").glob("workers/*1/worker.log")).read_text()
    assert all(" examples/s  loss" in text for text in (two_epochs.stdout, log))
    assert "127.0.0.1 20, 127.0.0.1 12 examples per step." in two_epochs.stdout
    assert "images" not in two_epochs.stdout + log


def test_columns_of_the_history_are_the_models_metrics_and_the_best_epoch_follows_the_loss(project, two_epochs):
    history, summary = rows(project, "table"), project.summary("table")
    assert list(history[0]) == ["epoch", "loss", "mae", "val_loss", "val_mae", "learning_rate", "seconds", "images_per_s"]
    best = min(history, key=lambda row: row["val_loss"])
    assert summary["best"] == {"epoch": best["epoch"], "val_loss": best["val_loss"]}
    assert len(set(summary["weights_sha256_by_rank"])) == 1
    assert f"best epoch  {best['epoch']:.0f} (validation loss {best['val_loss']:.4f})" in two_epochs.stdout


def test_evaluate_gives_the_models_own_metrics_as_keras_does(project, fitted):
    shown = project.play("evaluate", "run=table", "epoch=last").stdout
    (row,) = list(csv.DictReader((project.run("table") / "evaluations.csv").open()))
    assert list(row) == ["epoch", "split", "loss", "mae", "images", "seconds", "evaluated_at"]
    assert [float(row["loss"]), float(row["mae"])] == pytest.approx(fitted["tested"], rel=1e-4)
    assert "table on its test examples" in shown
    assert "image" not in shown.partition("test examples")[2]
    assert "Errors of epoch 2, prediction minus target" in shown
    assert (project.run("table") / "evaluations" / "errors-epoch-0002.png").stat().st_size > 5000


def predict(project: LocalProject, output: Path, *more: str, **options):
    return project.play("predict", "run=table", f"input={FILE}:new", "epoch=last", f"output={output}", *more, **options)


def end(playbook: subprocess.Popen[str], number: int, begun: Path) -> None:
    """Send a command a signal once there is this file."""
    try:
        await_until(lambda: begun.exists() or playbook.poll() is not None, 60, "its beginning", every=0.02)
        assert playbook.poll() is None, playbook.communicate()[0]
        os.killpg(playbook.pid, number)
        playbook.communicate(timeout=60 * SLOWEST)
    finally:
        playbook.kill()
    assert playbook.returncode != 0


def active(project: LocalProject) -> list[str]:
    """Sessions of the run; processes that read examples for this project, or run on one of its hosts."""
    listed = subprocess.run(["tmux", "-L", "lockstep", "ls", "-F", "#S"], capture_output=True, text=True, check=False).stdout.split()
    names = [name for name in listed if name.startswith("table-w")]
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command, folder = (entry / "cmdline").read_text(errors="replace"), str((entry / "cwd").readlink())
            reads = folder == str(project.root) and "new-examples" in command
            # The server of all sessions keeps the words of the first.
            if reads or (f"{project.root}/.lockstep/worker" in command and Path(command.partition("\0")[0]).name != "tmux"):
                names.append(command)
    return names


def left_of_predictions(project: LocalProject) -> list[Path]:
    """Files of predictions on this machine and on the hosts."""
    folders = [*project.root.glob(".lockstep/predict/*"), *(project.node(worker, "table") / "predict" for worker in (1, 2))]
    return [path for path in folders if path.exists()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_prediction_that_is_ended_leaves_nothing(project, two_epochs, tmp_path, number):
    """Ctrl-C while hosts predict, `kill` while the input is read; the next test does the same to its end."""
    begun = project.node(2, "table") / "predict/worker.log" if number == signal.SIGINT else project.root / ".lockstep/predict/table/0"
    end(project.start("predict", "run=table", f"input={FILE}:new", "epoch=last", f"output={tmp_path}/new.csv"), number, begun)
    # After SIGTERM, Ansible waits for nobody.
    await_until(lambda: not left_of_predictions(project), 60, "its files are removed")
    assert list(tmp_path.iterdir()) == []
    await_until(lambda: not active(project), 60, "its processes have ended")


def test_an_evaluation_that_is_ended_leaves_no_process_and_no_row(project, two_epochs):
    table, begun = project.run("table") / "evaluations.csv", project.node(1, "table") / "evaluate/metrics.jsonl"
    before = table.read_text() if table.is_file() else None
    begun.unlink(missing_ok=True)
    end(project.start("evaluate", "run=table", "epoch=last"), signal.SIGINT, begun)
    # At once: left alone, it would end by itself in a few seconds.
    assert active(project) == []
    assert (table.read_text() if table.is_file() else None) == before


def test_both_hosts_predict_their_rows_and_the_file_has_them_in_order(project, fitted, tmp_path):
    done = predict(project, tmp_path / "new.csv")
    with (tmp_path / "new.csv").open() as stream:
        predicted = list(csv.DictReader(stream))
    (name,) = [name for name in predicted[0] if name != "row"]
    assert [int(row["row"]) for row in predicted] == list(range(1, 601))
    assert [float(row[name]) for row in predicted] == pytest.approx(fitted["predicted"], rel=1e-4, abs=1e-5)
    assert f"600 rows of input={FILE}:new by table, epoch 2, on 2 hosts, written to {tmp_path}/new.csv" in done.stdout
    assert left_of_predictions(project) == []


@pytest.mark.parametrize(("model", "data"), [("build", "data"), pytest.param("variational", "rows", marks=EXHAUSTIVE)])
def test_a_run_that_is_continued_ends_with_the_weights_of_one_that_was_not_interrupted(model, data, project):
    for name, steps in (("whole", [20]), ("parts", [7, 20])):
        for count in steps:
            train(project, f"{name}-{model}", f"{UNEVEN},train.steps={count}", model=model, data=data)
    assert project.summary(f"whole-{model}")["weights_sha256"] == project.summary(f"parts-{model}")["weights_sha256"]
    assert project.summary(f"parts-{model}")["restarts"] == 1


@EXHAUSTIVE
def test_a_killed_worker_of_a_model_with_its_own_step_changes_nothing(project):
    uneven = f"{UNEVEN},train.steps=400,checkpoint.every_steps=8"
    train(project, "quiet", uneven, model="variational", data="rows")
    process = project.start("train", "run=killed", f"model={FILE}:variational", f"dataset={FILE}:rows", UNEVEN, uneven)
    await_until(lambda: project.steps(1, "killed") >= 16, 90, "some steps", every=0.02)
    await_until(lambda: sealed.names(project.node(2, "killed") / "state"), 60, "a state")
    os.kill(project.trainer_pid(2, "killed"), signal.SIGKILL)
    output, _ = process.communicate(timeout=240 * SLOWEST)
    assert process.returncode == 0, output
    assert project.summary("killed")["restarts"] == 1
    assert project.summary("killed")["weights_sha256"] == project.summary("quiet")["weights_sha256"]


SNAPSHOT = """
import importlib.util, json, sys
import keras
spec = importlib.util.spec_from_file_location("compiled", sys.argv[1])
spec.loader.exec_module(importlib.util.module_from_spec(spec))
model = keras.models.load_model(sys.argv[2])
averages = model.optimizer.inner_optimizer._model_variables_moving_average
apart = max(float(abs(mine.numpy() - average.numpy()).max()) for mine, average in zip(model.trainable_variables, averages, strict=True))
print(json.dumps({"steps": int(model.get_layer("counter").steps.numpy()), "apart": apart}))
"""


def test_averages_behind_a_scaled_loss_and_counts_are_those_of_fit(project):
    """Gradients come scaled, so they are not compressed by default, and not at all by PowerSGD."""
    train(project, "averaged", "epochs=1", model="averaged")
    argv = [sys.executable, "-c", SNAPSHOT, str(FILE), str(project.run("averaged") / "checkpoints" / "epoch-0001.keras")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    actual = json.loads(done.stdout.splitlines()[-1])
    assert actual == {"steps": project.summary("averaged")["steps"], "apart": pytest.approx(0.0, abs=1e-6)}
    for model, more, message in (
        ("averaged", ",reduction.name=powersgd", "reduction.name=powersgd: the model's optimizer scales the loss (float16), by a factor"),
        ("unreduced", "", "a loss has reduction=None, a value for each example"),
    ):
        given = ["run=refused", f"model={FILE}:{model}", f"dataset={FILE}:data", f"{UNEVEN}{more}"]
        refused = project.play("train", *given, check=False)
        assert message in refused.stdout, refused.stdout


def test_a_metric_that_is_no_number_is_left_out_and_the_run_goes_on(project):
    for epochs in (1, 2):
        shown = train(project, "precise", f"epochs={epochs}", "evaluate=true", model="precise").stdout
        assert "precision is nan in epoch" in shown
    assert [set(row) & {"loss", "val_loss", "precision", "val_precision"} for row in rows(project, "precise")] == [{"loss", "val_loss"}] * 2
    assert project.summary("precise")["best"]["epoch"] in (1, 2)
    refused = project.play("train", "run=other", f"model={FILE}:precise", f"dataset={FILE}:data", f"{UNEVEN},train.monitor=f1", check=False)
    assert "train.monitor=f1: this model has no such metric; it has: loss, precision, val_loss, val_precision" in refused.stdout


def test_what_train_step_returns_besides_metrics_is_a_mean_over_all_rows(project):
    train(project, "returned", "epochs=2", model="variational", data="rows")
    first, second = rows(project, "returned")
    assert list(first)[1:4] == ["loss", "divergence", "val_loss"]
    assert second["loss"] < first["loss"]
    assert first["divergence"] > 0


def test_callbacks_change_the_rate_and_end_the_training_also_when_it_is_continued(project):
    own = f"callbacks={FILE}:callbacks"
    shown = train(project, "called", own, "epochs=9").stdout
    assert [row["learning_rate"] for row in rows(project, "called")] == pytest.approx([0.01, 0.01, 0.005, 0.0025])
    assert "ended early  by a callback, after 4 epochs of 9" in shown
    assert "Nothing to do" in train(project, "called", own, "epochs=9").stdout
    train(project, "halved", own, "epochs=2")
    train(project, "halved", own, "epochs=9")
    assert project.summary("halved")["ended_early"]
    assert project.summary("halved")["weights_sha256"] == project.summary("called")["weights_sha256"]


@EXHAUSTIVE
def test_a_run_starts_from_the_weights_of_another_and_continues_as_if_it_had_not_stopped(project, two_epochs):
    given = f"weights={project.run('table')}/checkpoints/epoch-0002.keras"
    train(project, "tuned", given, "epochs=2")
    assert rows(project, "tuned")[0]["loss"] < rows(project, "table")[-1]["loss"]
    for steps in (7, 26):
        train(project, "tuned-parts", *([given] if steps == 7 else []), f"{UNEVEN},train.steps={steps}")
    assert project.summary("tuned-parts")["weights_sha256"] == project.summary("tuned")["weights_sha256"]


def test_weights_that_somebody_changed_in_the_shared_folder_are_not_loaded(project, two_epochs):
    given = f"weights={project.run('table')}/checkpoints/epoch-0001.keras"
    attacked = "{{ [plan.weights.name] | map('regex_replace', '^', dfs_path ~ '/code/') | first }}"
    done = project.train_attacked(
        ["dd", "if=/dev/zero", f"of={attacked}", "bs=1", "count=8", "conv=notrunc"],
        "run=attacked",
        f"model={FILE}:build",
        f"dataset={FILE}:data",
        given,
        f"{UNEVEN},train.steps=2",
    )
    assert done.returncode != 0
    assert "weights=epoch-0001.keras" in done.stdout
    assert "was given" in done.stdout
