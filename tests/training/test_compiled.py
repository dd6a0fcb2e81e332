"""Models that the user compiled, on columns: the numbers of `fit`, predictions, own steps, callbacks, exact resume."""

import contextlib
import csv
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests import preloaded
from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE, SLOWEST, await_during, await_until
from tests.training.trainings import Trainings

FILE = Path(__file__).with_name("compiled.py")
UNEVEN = "set=train.batch_sizes=[20,12],train.steps_per_call=2,telemetry.profile_every=0"
"""400 rows for training: 12.5 steps of 32 per epoch."""

# TensorFlow's settings of the workers must not reach the tests' own process.
BY_FIT = """
import importlib.util, json, sys
import keras
import numpy as np
from trainer.config import schema as configs
from trainer.data.open_examples import open_examples
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


def train(project: LocalProject, name: str, *more: str, model: str = "build", data: str = "data", **options) -> str:
    given = (f"run={name}", f"model={FILE}:{model}", f"dataset={FILE}:{data}", UNEVEN, "preflight=false")
    return project.play("train", *given, *more, **options).stdout


def apart(trainings: Trainings, name: str, *more: str, model: str = "build", data: str = "data") -> str:
    """Without Ansible."""
    return trainings.train(f"run={name}", f"model={FILE}:{model}", f"dataset={FILE}:{data}", UNEVEN, *more)


@pytest.fixture(scope="module")
def two_epochs(project):
    """Two epochs on two workers with uneven parts of a step, the last one evaluated."""
    return train(project, "table", "epochs=2", "evaluate=true")


def by_itself(folder: Path, script: str, *arguments) -> dict:
    """What a script prints last that runs in a process of its own."""
    return preloaded.answer(("-c", script, *map(str, arguments)), folder, preloaded.ONE_THREAD)


@pytest.fixture(scope="module")
def fitted(project, two_epochs, tmp_path_factory):
    """The same by Keras' own `fit` in one process."""
    run = project.run("table")
    packs, folder = project.root / ".lockstep" / "dfs" / "datasets", tmp_path_factory.mktemp("fitted")
    return by_itself(folder, BY_FIT, FILE, packs, folder, run / "checkpoints" / "epoch-0002.keras", run / "cluster.json")


def test_two_workers_train_as_fit_does(project, fitted):
    """With the global batch: weights, losses and metrics."""
    assert fitted["apart"] < 1e-4
    for row, logs in zip(project.history("table"), fitted["logs"], strict=True):
        assert row["loss"] == pytest.approx(logs["loss"][0], rel=1e-4)
        assert row["mae"] == pytest.approx(logs["mae"][0], rel=1e-4)


def test_rows_are_called_examples_everywhere(project, two_epochs):
    log = (project.run("table") / "workers" / "worker1" / "worker.log").read_text()
    assert all(" examples/s  " in text for text in (two_epochs, log))
    assert "127.0.0.1 20, 127.0.0.1 12 examples per step." in two_epochs
    assert "images" not in two_epochs + log


def test_history_has_the_models_metrics(project, two_epochs):
    """The best epoch follows the loss, of which less is better."""
    rows, summary = project.history("table"), project.summary("table")
    assert list(rows[0]) == ["epoch", "loss", "mae", "val_loss", "val_mae", "learning_rate", "seconds", "images_per_s"]
    best = min(rows, key=lambda row: row["val_loss"])
    assert summary["best"] == {"epoch": best["epoch"], "val_loss": best["val_loss"]}
    assert len(set(summary["weights_sha256_by_rank"])) == 1
    assert f"best epoch  {best['epoch']:.0f} (validation loss {best['val_loss']:.4f})" in two_epochs


def test_evaluation_gives_the_metrics_of_keras(project, two_epochs, fitted):
    (row,) = list(csv.DictReader((project.run("table") / "evaluations.csv").open()))
    assert list(row) == ["epoch", "split", "loss", "mae", "images", "seconds", "evaluated_at"]
    assert [float(row["loss"]), float(row["mae"])] == pytest.approx(fitted["tested"], rel=1e-4)
    assert "table on its test examples" in two_epochs
    assert "Errors of epoch 2, prediction minus target" in two_epochs
    assert (project.run("table") / "evaluations" / "errors-epoch-0002.png").stat().st_size > 5000


def prediction(output: Path) -> list[str]:
    return ["predict", "run=table", f"input={FILE}:new", "epoch=last", f"output={output}"]


def left_of_predictions(project: LocalProject) -> list[Path]:
    """Files of predictions on this machine and on the hosts."""
    folders = [*project.root.glob(".lockstep/predict/*"), *(project.node(worker, "table") / "predict" for worker in (1, 2))]
    return [path for path in folders if path.exists()]


def test_two_hosts_predict_all_rows_in_order(project, fitted, tmp_path):
    done = project.play(*prediction(tmp_path / "new.csv"))
    with (tmp_path / "new.csv").open() as stream:
        predicted = list(csv.DictReader(stream))
    (name,) = [name for name in predicted[0] if name != "row"]
    assert [int(row["row"]) for row in predicted] == list(range(1, 601))
    assert [float(row[name]) for row in predicted] == pytest.approx(fitted["predicted"], rel=1e-4, abs=1e-5)
    assert f"600 rows of input={FILE}:new by table, epoch 2, on 2 hosts, written to {tmp_path}/new.csv" in done.stdout
    assert left_of_predictions(project) == []


def end(playbook: subprocess.Popen[str], number: int, begun: Path) -> None:
    """Send a command a signal once there is this file."""
    await_during(playbook, begun.exists, 60, "its beginning", every=0.02)
    os.killpg(playbook.pid, number)
    playbook.communicate(timeout=60 * SLOWEST)
    assert playbook.returncode != 0


def active(project: LocalProject) -> list[str]:
    """Sessions of the run; processes that read examples for this project, or run on one of its hosts."""
    names = project.sessions("table")
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command, folder = (entry / "cmdline").read_text(errors="replace"), str((entry / "cwd").readlink())
            reads = folder == str(project.root) and "new-examples" in command
            # The server of all sessions keeps the words of the first.
            if reads or (f"{project.root}/.lockstep/worker" in command and Path(command.partition("\0")[0]).name != "tmux"):
                names.append(command)
    return names


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=EXHAUSTIVE)])
def test_an_ended_prediction_leaves_nothing(project, two_epochs, tmp_path, number):
    """Ctrl-C while hosts predict, `kill` while the input is read."""
    begun = project.node(2, "table") / "predict/worker.log" if number == signal.SIGINT else project.root / ".lockstep/predict/table/0"
    end(project.start(*prediction(tmp_path / "new.csv")), number, begun)
    # After SIGTERM, Ansible waits for nobody.
    await_until(lambda: not left_of_predictions(project), 60, "its files are removed")
    assert list(tmp_path.iterdir()) == []
    await_until(lambda: not active(project), 60, "its processes have ended")


@EXHAUSTIVE
def test_an_ended_evaluation_leaves_no_process_or_row(project, two_epochs):
    table, begun = project.run("table") / "evaluations.csv", project.node(1, "table") / "evaluate/metrics.jsonl"
    before = table.read_text()
    begun.unlink(missing_ok=True)
    end(project.start("evaluate", "run=table", "epoch=last"), signal.SIGINT, begun)
    # At once: left alone, it would end by itself in a few seconds.
    assert active(project) == []
    assert table.read_text() == before


CALLED = ("epochs=9", f"callbacks={FILE}:callbacks")


@pytest.fixture(scope="module")
def called(trainings):
    """A model with its own `train_step` and noise, and callbacks that halve its rate and end it."""
    return apart(trainings, "called", *CALLED, model="variational", data="rows")


def test_callbacks_change_the_rate_and_end_it(trainings, called):
    assert [row["learning_rate"] for row in trainings.history("called")] == pytest.approx([0.01, 0.01, 0.005, 0.0025])
    assert trainings.summary("called")["ended_early"]
    assert (trainings.run("called") / "output/log.csv").read_text().startswith("epoch,")


def test_an_own_train_step_has_its_own_values(trainings, called):
    """What it returns besides metrics is a column, too."""
    first, *_, last = trainings.history("called")
    assert list(first)[1:4] == ["loss", "divergence", "val_loss"]
    assert last["loss"] < first["loss"]
    assert first["divergence"] > 0


def test_callbacks_and_own_steps_are_resumed(trainings, called):
    """A continued run ends with the weights of a whole one, noise and rate included, and by the same callback."""
    own = {"model": "variational", "data": "rows"}
    apart(trainings, "parts", "epochs=2", *CALLED[1:], **own)
    apart(trainings, "parts", *CALLED, **own)
    whole, parts = trainings.summary("called"), trainings.summary("parts")
    assert (parts["ended_early"], parts["restarts"]) == (whole["ended_early"], 1)
    assert parts["ended_by"] == whole["ended_by"] == "EarlyStopping(monitor=val_loss, patience=3)"
    assert parts["weights_sha256"] == whole["weights_sha256"]


@EXHAUSTIVE
@pytest.mark.parametrize(("model", "data"), [("build", "data"), ("variational", "rows")])
def test_a_run_stopped_inside_an_epoch_is_resumed(project, model, data):
    for name, steps in (("at-once", [20]), ("in-two", [7, 20])):
        for count in steps:
            train(project, f"{name}-{model}", f"{UNEVEN},train.steps={count}", model=model, data=data)
    assert project.summary(f"at-once-{model}")["weights_sha256"] == project.summary(f"in-two-{model}")["weights_sha256"]
    assert project.summary(f"in-two-{model}")["restarts"] == 1


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


def test_averages_behind_a_scaled_loss_are_kept(trainings, tmp_path):
    """The snapshot has the averages of the weights, and a layer's count of steps, as after `fit`."""
    apart(trainings, "averaged", "epochs=1", model="averaged")
    snapshot = by_itself(tmp_path, SNAPSHOT, FILE, trainings.run("averaged") / "checkpoints" / "epoch-0001.keras")
    assert snapshot == {"steps": trainings.summary("averaged")["steps"], "apart": pytest.approx(0.0, abs=1e-6)}


@EXHAUSTIVE
def test_a_metric_without_a_number_is_left_out(project):
    for epochs in (1, 2):
        shown = train(project, "precise", f"epochs={epochs}", "evaluate=true", model="precise")
        assert "precision is nan in epoch" in shown
    columns = [set(row) & {"loss", "val_loss", "precision", "val_precision"} for row in project.history("precise")]
    assert columns == [{"loss", "val_loss"}] * 2
    assert project.summary("precise")["best"]["epoch"] in (1, 2)


@EXHAUSTIVE
def test_a_run_starts_from_the_weights_of_another(project, two_epochs):
    """And continues as if it had not stopped."""
    given = f"weights={project.run('table')}/checkpoints/epoch-0002.keras"
    train(project, "tuned", given, "epochs=2")
    assert project.history("tuned")[0]["loss"] < project.history("table")[-1]["loss"]
    for steps in (7, 26):
        train(project, "tuned-parts", *([given] if steps == 7 else []), f"{UNEVEN},train.steps={steps}")
    assert project.summary("tuned-parts")["weights_sha256"] == project.summary("tuned")["weights_sha256"]
