"""What is refused before a host is touched, and what the user is told."""

import json
import shutil
import subprocess

import pytest

from control.runs.launch import reservations
from tests.contract import samples
from tests.contract.samples import COMPILED, UNEVEN

TABLE = f"model={COMPILED}:build", f"dataset={COMPILED}:data"


def command(line: str, **places: object) -> list[str]:
    """The words of a command line; `{pictures}` and the like stand for paths, which may have spaces."""
    return [word.format(**places) for word in line.split()]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train epoch=3", "did you mean epochs?"),
        ("train workers=6 dataset={pictures}", "workers=6: the inventory has 5"),
        ("train run=../escape", "run=../escape: a run name is"),
        ("train run=$(reboot)", "a run name is"),
        ("train set=train.batchsize=3 dataset={pictures}", "did you mean train.batch_size?"),
        ("train --limit=worker1", "--limit worker1: a synchronous cluster waits for every worker"),
        (
            "train config=task_cnn dataset={pictures} queue=true evaluate=true",
            "evaluate=true, queue=true: the command returns once the run is queued. Fix: -e detach=false",
        ),
        (
            "train config=task_cnn dataset={pictures} workers=3 set=recovery.elastic=true,strategy.name=parameter_server",
            "its workers come and go anyway",
        ),
        ("train config=task_cnn dataset={pictures} set=train.last_layers=99", "train.last_layers=99: the model has"),
        ("train dataset={pictures} weights=none.keras", "no such file"),
        ("train dataset={pictures} weights={compiled}", "ends with .weights.h5 or .keras"),
        ("sweep config=task_cnn workers=9", "workers=9: the inventory has 5 hosts; add hosts or ask for fewer"),
        ("serve", "there is no exported model; first: ansible-playbook export.yml -e run=NAME"),
        ("serve prot=1", "-e prot=1: serve.yml takes no such variable"),
        ("export epoch=1", "there is no run yet; start one with: ansible-playbook train.yml"),
        ("playbooks/delete_run", "run: missing; say which with -e run=NAME"),
        ("playbooks/visualize images=0", "images=0: expected a whole number from 1"),
    ],
)
def test_bad_input_is_refused(line, message, commands, pictures):
    name, *arguments = command(line, pictures=pictures, compiled=COMPILED)
    refused = commands.refusal(name, *arguments)
    assert message in refused
    assert len(refused.splitlines()) < 24


@pytest.fixture
def broken(pictures, tmp_path):
    """A copy of the pictures with a truncated and an unreadable file."""
    root = tmp_path / "broken"
    shutil.copytree(pictures, root)
    whole = (root / "train" / "cat" / "bild 0.jpg").read_bytes()
    (root / "train" / "cat" / "bild 0.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "test" / "Käse" / "bild 1.png").write_bytes(b"no image")
    return root


def test_bad_images_are_listed_unless_allowed(commands, broken):
    """Nothing is published, and nothing starts: the plan refuses them, with --check, too."""
    given = ("run=bad", f"dataset={broken}", "config=task_cnn", "quick=true", "preflight=false")
    refused = commands.refusal("train", *given)
    assert commands.refusal("train", "--check", *given) == refused
    expected = ("2 images can't be read", "train/cat/bild 0.jpg: Truncated File Read", "test/Käse/bild 1.png", "allow_bad_images=true")
    assert [words for words in expected if words not in refused] == []
    assert not commands.run("bad").exists()
    assert not list((commands.root / ".lockstep" / "dfs" / "datasets").glob(".part-*"))
    allowed = commands.check("train", *given, "allow_bad_images=true")
    assert "2 images that can't be read" in allowed
    assert "left out 2 images" in commands.run_here("train", *given, "allow_bad_images=true").stdout


@pytest.mark.parametrize(
    ("model", "data", "more", "message"),
    [
        ("nothing", "data", "", "model=compiled.py:nothing: a step of training fails: ValueError: None values not supported."),
        ("misfit", "inputs_and_sums", "", "Fix: an output of y's shape; "),
        ("standardised", "sizes", "", "Fix: leave a missing value empty, or write NA; "),
        ("largest", "data", "", "the metric largest keeps no sums"),
        ("unknown", "inputs_and_sums", "", "Could not locate class 'Unknown'"),
        ("uncompiled", "inputs_and_sums", "", "its model is not compiled"),
        ("build", "missing", "", "y of example 3 of train is NaN or infinite"),
        (
            "classes",
            "another_class",
            "",
            "y of test has the class 3, and the model's output has 3 numbers; sparse categorical cross-entropy",
        ),
        ("build", "nobody", "", "train is empty; it needs at least one example. Fix: "),
        ("build", "another_shape", "", "batch 1 of train: an example is x float32 [5], and x float32 [4] in the first batch"),
        ("build", "ends_early", "", "RuntimeError: the connection is gone"),
        ("build", "data", ",optimizer.learning_rate=0.1", "learning_rate=0.1: the model is compiled with an optimizer of its own (Adam)"),
        ("averaged", "data", ",reduction.name=powersgd", "powersgd: the model's optimizer scales the loss (float16), by a factor"),
        ("unreduced", "data", ",train.epochs=1", "a loss has reduction=None, a value for each example"),
        ("precise", "data", ",train.monitor=f1", "this model has no such metric; it has: loss, precision, val_loss, val_precision"),
    ],
)
def test_a_users_model_or_data_is_refused(model, data, more, message, commands):
    """On one screen; and what is set for a compiled model."""
    refused = commands.refusal("train", "run=refused", f"model={COMPILED}:{model}", f"dataset={COMPILED}:{data}", f"{UNEVEN}{more}")
    assert message in refused
    assert len(refused.splitlines()) < 24
    assert not commands.run("refused").exists()


def test_weights_that_do_not_fit(commands, tmp_path):
    """They are refused, or left out of the layers that they do not fit."""
    commands.call("tests.contract.samples:save_model", str(tmp_path / "epoch-0002.keras"), str(COMPILED), "build")
    given = *TABLE, f"weights={tmp_path}/epoch-0002.keras"
    refused = commands.refusal("train", *given, f"{UNEVEN},model.width=9")
    assert "weights=epoch-0002.keras: they don't fit the model" in refused
    assert "-e set=train.skip_mismatch=true" in refused
    planned = commands.check("train", *given, f"{UNEVEN},model.width=9,train.skip_mismatch=true")
    assert "weights       of epoch-0002.keras; initial ones in " in planned


# --- runs that exist


@pytest.fixture(scope="module")
def whole(commands, pictures):
    """A run of four epochs."""
    return samples.train(commands, "whole", "config=task_cnn", f"dataset={pictures}", "epochs=4")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train run=whole set=optimizer.momentum=0.5", "this run exists with another optimizer.momentum"),
        ("evaluate run=whole epoch=12", "epoch=12: run whole has no such snapshot; there are: 1-4"),
        ("evaluate run=whole image={letter}", "can't be read: not a JPEG, PNG, BMP or GIF"),
        ("predict run=whole", "input: missing; say what to predict"),
        ("export run=whole epoch=1,2", "epoch=1,2: a version holds one snapshot"),
        ("export run=whole epoch=9", "has no such snapshot"),
        ("report run=whoel", "run=whoel: no such run (did you mean whole?); there are: "),
        ("tensorboard run=whoel", "run=whoel: no such run (did you mean whole?)"),
    ],
)
def test_what_a_run_can_not_do(line, message, commands, whole, tmp_path):
    (tmp_path / "letter.txt").write_text("no image")
    name, *arguments = command(line, letter=tmp_path / "letter.txt")
    assert message in commands.refusal(name, *arguments)


def test_a_complete_run_has_nothing_to_do(commands, pictures, whole):
    before = (whole / "summary.json").read_text()
    for epochs, words in ((4, "Nothing to do: 4 epochs are done already."), (1, "Nothing to do")):
        again = commands.ended("train", "run=whole", "config=task_cnn", f"dataset={pictures}", f"epochs={epochs}")
        assert words in again.stdout
        assert not again.changed
    assert (whole / "summary.json").read_text() == before


def test_a_dataset_that_has_changed(commands, pictures, tmp_path):
    copy = tmp_path / "copy of pictures"
    shutil.copytree(pictures, copy)
    samples.train(commands, "altered", "config=task_cnn", f"dataset={copy}", "epochs=1")
    (copy / "train" / "cat" / "bild 1.png").unlink()
    # `train.yml` would settle the earlier launch first.
    refused = commands.refusal("playbooks/slurm", "run=altered", "epochs=2")
    assert "run=altered: its dataset was" in refused
    assert "its examples have changed since. Fix: restore them" in refused


def test_a_prediction_that_can_not_be(commands, tmp_path):
    run = samples.launch(commands, "table", *TABLE, UNEVEN, "epochs=2")
    commands.call("tests.contract.samples:save_snapshots", str(run), [2])
    (tmp_path / "new.csv").write_text("a,c\n1,2\n")
    refused = commands.refusal("predict", "run=table", "epoch=last", f"input={tmp_path}/new.csv")
    assert "is a table, and the model was trained on arrays: x.a float32 [4], x.b float32 [1]" in refused
    planned = commands.check("predict", "run=table", f"input={COMPILED}:new", "epoch=last", f"output={tmp_path}/planned.csv")
    assert f"Would predict 600 rows of input={COMPILED}:new by table, epoch 2, on 2 hosts, to be written to" in planned
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv"]


def test_a_script_has_no_model(commands, tmp_path):
    (tmp_path / "main.py").write_text("print()")
    samples.succeed(samples.launch(commands, "scripted", f"script={tmp_path}"))
    assert "Nothing to do" in commands.ended("train", "run=scripted", f"script={tmp_path}").stdout
    refused = [commands.refusal(name, "run=scripted") for name in ("evaluate", "report", "export")]
    assert ["run=scripted: it runs a script of yours" in one for one in refused] == [True, True, True]


def test_a_sweep_of_other_settings(commands, pictures):
    """A sweep that has measured a trial."""
    from control.campaign import timings

    given = (f"dataset={pictures}", "sweep=pi", "config=task_cnn", "epochs=1", "preflight=false", "workers=2", "repeats=2")
    planned = commands.run_here("sweep", *given, "set=train.batch_size=10")
    assert planned.returncode == 0, planned
    row = timings.Timing(2, 1, 1, 40.0, 30.0, 1000.0, 0, "weak", "SUCCEEDED", "worker1 worker2")
    timings.put(commands.root / "sweeps/pi/timings.csv", row)
    refused = commands.refusal("sweep", *given, "set=train.batch_size=12")
    assert "sweep=pi: it was measured with another train.batch_size, and the two can't be compared" in refused
    again = commands.check("sweep", *given, "set=train.batch_size=10")
    assert "1 of them measured already" in again


@pytest.fixture
def starting(commands):
    """A run that another command, which lives, is about to start: its process."""
    other = subprocess.Popen(["sleep", "infinity"])
    for path, text in {
        ".lockstep/starting/two.json": json.dumps({"command": reservations.identity(other.pid)}),
        "runs/two/config.yml": "model: {name: task_cnn}\n",
    }.items():
        (commands.root / path).parent.mkdir(parents=True, exist_ok=True)
        (commands.root / path).write_text(text)
    yield other
    shutil.rmtree(commands.root / "runs/two")
    other.kill()
    other.wait()


@pytest.mark.parametrize("command", ["train", "stop", "status", "playbooks/delete_run"])
def test_a_run_that_another_command_starts(command, commands, starting):
    assert f"run=two: another command (process {starting.pid}) is starting it; nothing was changed." in commands.refusal(command, "run=two")
