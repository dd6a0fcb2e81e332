"""Models that the user compiled, on columns, through the playbooks: the numbers of `fit`, exact resume, callbacks, what is refused."""

from pathlib import Path

import pytest

from tests.local_project import LocalProject

FILE = Path(__file__).with_name("compiled.py")
UNEVEN = "set=train.batch_sizes=[20,12],train.steps_per_call=2,telemetry.profile_every=0"
"""400 rows for training: 12.5 steps of 32 per epoch."""


def train(project: LocalProject, name: str, *more: str, model: str = "build", data: str = "data", **options):
    return project.play("train", f"run={name}", f"model={FILE}:{model}", f"dataset={FILE}:{data}", UNEVEN, *more, **options)


@pytest.fixture(scope="module")
def two_epochs(project):
    """Two epochs on two workers with uneven parts of a step."""
    return train(project, "table", "epochs=2")


def test_the_plan_says_what_the_model_takes_and_is_compiled_with(two_epochs):
    for expected in (
        "inputs        x.a float32 [4], x.b float32 [1]",
        "outputs       y float32",
        "compiled      optimizer Adam, loss mse, metrics mae",
        "400 training, 100 validation, 100 test examples",
    ):
        assert expected in two_epochs.stdout


def predict(project: LocalProject, output: Path, *more: str, **options):
    return project.play("predict", "run=table", f"input={FILE}:new", "epoch=last", f"output={output}", *more, **options)


def left_of_predictions(project: LocalProject) -> list[Path]:
    """Files of predictions on this machine and on the hosts."""
    folders = [*project.root.glob(".lockstep/predict/*"), *(project.node(worker, "table") / "predict" for worker in (1, 2))]
    return [path for path in folders if path.exists()]


def test_a_prediction_that_can_not_be_is_refused_before_hosts_are_touched(project, two_epochs, tmp_path):
    (tmp_path / "new.csv").write_text("a,c\n1,2\n")
    refused = project.play("predict", "run=table", f"input={tmp_path}/new.csv", check=False)
    assert "is a table, and the model was trained on arrays: x.a float32 [4], x.b float32 [1]" in refused.stdout
    assert "--- Put the trainer" not in refused.stdout
    planned = predict(project, tmp_path / "planned.csv", "--check")
    assert f"Would predict 600 rows of input={FILE}:new by table, epoch 2, on 2 hosts, to be written to" in planned.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv"]


def test_status_and_report_of_a_model_that_classifies_nothing(project, two_epochs):
    assert "2 (validation loss" in project.play("status", "run=table").stdout
    project.play("report", "run=table", "evaluate=false", check=False)
    page = (project.run("table") / "report" / "README.md").read_text()
    assert "best validation loss" in page
    assert "is the most promising, with a validation loss of" in page
    assert "accuracy" not in page.replace("accuracy.yml", "")


def test_weights_that_do_not_fit_are_refused_or_left_out(project, two_epochs):
    given = f"weights={project.run('table')}/checkpoints/epoch-0002.keras"
    refused = train(project, "refused", given, f"{UNEVEN},model.width=9", check=False)
    assert "weights=epoch-0002.keras: they don't fit the model" in refused.stdout
    assert "-e set=train.skip_mismatch=true" in refused.stdout
    assert "no such file" in train(project, "refused", "weights=none.keras", check=False).stdout
    assert "ends with .weights.h5 or .keras" in train(project, "refused", f"weights={FILE}", check=False).stdout
    train(project, "wider", given, f"{UNEVEN},model.width=9,train.skip_mismatch=true,train.steps=2")


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ("nothing", "data", "model=compiled.py:nothing: a step of training fails: ValueError: None values not supported."),
        ("misfit", "inputs_and_sums", "Fix: an output of y's shape; "),
        ("largest", "data", "the metric largest keeps no sums"),
        ("unknown", "inputs_and_sums", "Could not locate class 'Unknown'"),
        ("uncompiled", "inputs_and_sums", "its model is not compiled"),
        ("build", "missing", "y of example 3 of train is NaN or infinite"),
        ("classes", "another_class", "y of test has the class 3, and the model's output has 3 numbers; sparse categorical cross-entropy"),
        ("build", "nobody", "train is empty; it needs at least one example. Fix: "),
        ("build", "another_shape", "batch 1 of train: an example is x float32 [5], and x float32 [4] in the first batch"),
        ("build", "ends_early", "RuntimeError: the connection is gone"),
    ],
)
def test_what_a_new_user_gets_wrong_is_said_on_one_screen_before_hosts_are_touched(model, data, message, project):
    refused = train(project, "refused", model=model, data=data, check=False)
    assert refused.returncode != 0
    assert message in refused.stdout
    assert len(refused.stdout.splitlines()) < 24
    assert "--- Look at the hosts" not in refused.stdout
    assert not project.run("refused").exists()


def test_settings_that_a_compiled_model_would_ignore_are_refused(project):
    refused = train(project, "refused", f"{UNEVEN},optimizer.learning_rate=0.1", check=False)
    assert "optimizer.learning_rate=0.1: the model is compiled with an optimizer of its own (Adam)" in refused.stdout
