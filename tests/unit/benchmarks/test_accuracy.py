"""Compression against none over several seeds: which trainings, the table, what is refused."""

import json
import shutil
from types import SimpleNamespace

import pytest

from benchmarks.accuracy import accuracy_results
from benchmarks.accuracy.accuracy_results import Row, Training
from benchmarks.shared import benchmark
from benchmarks.tasks import run_accuracy
from control.common import project
from tests.unit.samples import HISTORY
from trainer.common.errors import ConfigError, LockstepError
from trainer.common.files import write_rows
from trainer.rundir.launch_record import Host

HOSTS = [Host(name=f"node{number}", address=f"10.0.0.{number}") for number in range(5)]


def row(method="packed", seed=1, last=0.58, best=0.59, config="task_cnn", speed=1000.0):
    return Row(config, method, seed, 10, last, best, speed, 60.0)


ROWS = [
    *(row(seed=seed, last=last) for seed, last in ((1, 0.570), (2, 0.590), (3, 0.580))),
    *(row("powersgd", seed, last, speed=3000.0) for seed, last in ((1, 0.579), (2, 0.560), (3, 0.583))),
]


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(project, "RUNS", tmp_path / "runs")
    return tmp_path


def test_methods_take_turns():
    actual = accuracy_results.trainings(["a", "b"], ["packed", "powersgd"], [1, 2])
    assert [one.run("x") for one in actual[:5]] == ["x.a.packed.s1", "x.a.powersgd.s1", "x.b.packed.s1", "x.b.powersgd.s1", "x.a.packed.s2"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            "packed,zip",
            "methods=packed,zip: zip is unknown; there are: packed, half, powersgd, powersgd-1, powersgd-2, powersgd-4, powersgd-8, "
            "powersgd-paper",
        ),
        ("powersgd", "methods=powersgd: packed is what the others are compared to; add it"),
    ],
)
def test_methods_that_can_not_be_compared(asked, message):
    with pytest.raises(ConfigError) as caught:
        accuracy_results.methods(asked)
    assert str(caught.value) == message


def test_medians_are_compared_in_points_over_the_same_seeds():
    packed, powersgd = accuracy_results.compared(ROWS)
    assert (packed["median"], packed["points"]) == (0.58, None)
    assert powersgd["median"] == 0.579
    assert powersgd["points"] == pytest.approx(-0.1)
    cells = accuracy_results.table(ROWS).splitlines()[2].split()
    assert cells == ["task_cnn", "powersgd", "3", "0.5790", "0.5600", "0.5830", "-0.10", "0.5900", "3,000"]
    (_, two) = accuracy_results.compared([*ROWS[:3], ROWS[3]])
    assert two["points"] == pytest.approx(0.9)


def test_only_a_comparison_of_the_same_is_continued(results, monkeypatch):
    made = run_accuracy.plan({}, HOSTS)
    assert (made["configs"], made["methods"], made["seeds"]) == (["task_cnn", "deep_cnn"], ["packed", "powersgd"], [1, 2, 3])
    assert f"-e accuracy={made['name']}" in made["command"]
    made = run_accuracy.plan({"accuracy": "one"}, HOSTS)
    folder = results / "results/one"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({key: made[key] for key in run_accuracy.KEPT}))
    assert len(run_accuracy.plan({"accuracy": "one", "seeds": "1-5"}, HOSTS)["trainings"]) == 20
    more = [*HOSTS, Host(name="node5", address="10.0.0.5")]
    assert run_accuracy.plan({"accuracy": "one", "workers": "5"}, more)["hosts"] == made["hosts"]
    with pytest.raises(LockstepError, match=r"^accuracy=one: it was measured with another hosts \(.*4 10\.0\.0\.4.*, now .*4 10\.0\.1\.4"):
        run_accuracy.plan({"accuracy": "one"}, [*HOSTS[:4], Host(name="node4", address="10.0.1.4")])
    with pytest.raises(LockstepError, match=r"^accuracy=one: it was measured with another epochs \(10, now 3\), .*: -e accuracy=one-2$"):
        run_accuracy.plan({"accuracy": "one", "epochs": "3"}, HOSTS)
    monkeypatch.setattr(run_accuracy.trainer_package, "TRAINER", SimpleNamespace(sha256=lambda: "other"))
    with pytest.raises(LockstepError, match=r"^accuracy=one: it was measured with another code \(.*, now other\)"):
        run_accuracy.plan({"accuracy": "one"}, HOSTS)
    with pytest.raises(ConfigError, match=r"^accuracy=\.\./elsewhere: a name is 1 to 64 of "):
        run_accuracy.plan({"accuracy": "../elsewhere"}, HOSTS)


@pytest.mark.parametrize(
    ("given", "way"),
    [
        ("seed=1", "seeds=1-3"),
        ("train.epochs=1", "epochs=10"),
        ("train.steps=9", "epochs=10"),
        ("train={epochs: 2}", "epochs=10"),
        ("data.limit_train=0.2,reduction.rank=2", "methods=packed,powersgd-4"),
        ("reduction={name: half}", "methods=packed,powersgd-4"),
    ],
)
def test_what_is_compared_is_not_set(given, way, results):
    key = given.rpartition(",")[2].partition("=")[0]
    with pytest.raises(LockstepError) as caught:
        run_accuracy.plan({"set": given}, HOSTS)
    assert str(caught.value) == f"set={key}: the comparison varies or sets it; give it as -e {way}"
    assert run_accuracy.plan({"set": "data.limit_train=0.2"}, HOSTS)["set"] == "data.limit_train=0.2"


def finished(results, training, name="one"):
    run = results / "runs" / training.run(name)
    run.mkdir(parents=True)
    summary = {"epochs_done": 2, "best": {"epoch": 1, "val_accuracy": 0.6}, "images_per_s": 900.0, "seconds_training": 12.5}
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "evaluations.csv").write_text(
        "epoch,split,loss,accuracy,images,seconds,evaluated_at\n1,test,1,0.61,10,1,now\n2,test,1,0.55,10,1,now\n"
    )
    rows = ({**dict.fromkeys(HISTORY, 0.5), "epoch": epoch, "val_accuracy": value} for epoch, value in ((1, 0.6), (2, 0.57)))
    write_rows(run / "history.csv", HISTORY, rows)
    (run / "cluster.json").write_text(json.dumps({"hosts": [{"name": "node1", "cpu": "a processor"}]}))
    return run


def test_the_conclusion_writes_table_summary_and_picture(results):
    made = run_accuracy.plan({"accuracy": "one"}, HOSTS)
    folder = results / "results/one"
    for method in ("packed", "powersgd"):
        for seed in (1, 2):
            training = Training("task_cnn", method, seed)
            accuracy_results.STORE.put(folder / "results.csv", run_accuracy.row_of(training, finished(results, training)))
    assert accuracy_results.STORE.read(folder / "results.csv")[0] == Row("task_cnn", "packed", 1, 2, 0.55, 0.61, 900.0, 12.5)
    shown = run_accuracy.conclude(folder, made)
    assert "Test accuracy after 10 epochs" in shown
    assert "-e seeds=1-5" in shown
    summary = json.loads((folder / "summary.json").read_text())
    assert [one["method"] for one in summary["compared"]] == ["packed", "powersgd"]
    assert summary["hosts"][0]["cpu"] == "a processor"
    assert (folder / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    shutil.rmtree(project.RUNS / training.run("one"))
    # A deleted run leaves its row, and no curve.
    assert len(run_accuracy._curves(accuracy_results.STORE.read(folder / "results.csv"), "one")) == 3
    run_accuracy.conclude(folder, made)
    assert "0.5500" in (folder / "table.md").read_text()
