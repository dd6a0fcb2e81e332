"""Models and scripts of the user's own on SSH hosts: variants of what local workers do, all of them exhaustive."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from control.runs.results.evaluation_table import EvaluationTable
from tests.lab.conftest import NAMES, NODES, Lab
from tests.project import EXHAUSTIVE, ROOT, SLOWEST, Project, await_during, await_until

pytestmark = EXHAUSTIVE
TRIGGERS = (
    "trainer/keras_fit/site",
    "trainer/step/program.py",
    "trainer/keras_fit/distribute.py",
    "trainer/worker/choose_engine.py",
    "control/runs/planning/script_plan.py",
    "roles/worker",
)
ASYNCHRONOUS = ("trainer/parameter_server", "control/runs/planning/parameter_servers.py", "roles/worker")
SCRIPTS = ROOT / "tests" / "scripts"
SETTINGS = "set=train.steps=30,train.batch_sizes=[14,10,8],telemetry.profile_every=0,reduction.name=packed"


def metrics(project: Project, run: str) -> dict[str, float]:
    """The metrics of a run's last epoch."""
    with (project.run(run) / "history.csv").open(newline="") as stream:
        row = list(csv.DictReader(stream))[-1]
    return {name: float(value) for name, value in row.items() if value and "seconds" not in name and "_per_s" not in name}


def train(project: Project, run: str, name: str) -> None:
    """An example on three workers; nothing if that run is complete."""
    project.play("train", f"run={run}", f"model=examples/{name}.py:build", f"dataset=examples/{name}.py:data", "workers=3", SETTINGS)


@EXHAUSTIVE("examples", "trainer/user_code/user_function.py", "trainer/data", "control/datasets")
@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "text"))
def test_three_ssh_hosts_train_an_example_as_three_local_workers_do(cluster: Lab, name):
    """`tests/training/test_examples.py` compares local workers with `fit`. `text.py` adapts to the text of a host's own Python."""
    local = Project(cluster.root)
    train(cluster, f"ssh-{name}", name)
    train(local, f"local-{name}", name)
    assert metrics(cluster, f"ssh-{name}") == pytest.approx(metrics(local, f"local-{name}"), rel=1e-4)


@EXHAUSTIVE("predict.yml", "playbooks/stages/predict.yml", "control/runs/predict/prediction_job.py", "trainer/evaluation/predict.py")
def test_three_ssh_hosts_predict_what_one_does_in_the_inputs_order(cluster: Lab, tmp_path):
    """1,500 rows: two blocks of 256 for each of three hosts, the last one smaller."""
    train(cluster, "ssh-regression", "regression")
    predicted = {}
    for number, words in ((3, "on 3 hosts"), (1, "on 1 host,")):
        output, given = tmp_path / f"{number}.csv", f"input={cluster.root}/examples/regression.py:data"
        done = cluster.play("predict", "run=ssh-regression", "epoch=last", given, f"workers={number}", f"output={output}").stdout
        assert words in done, done
        with output.open(newline="") as stream:
            predicted[number] = list(csv.DictReader(stream))
    assert [row["row"] for row in predicted[3]] == [str(number) for number in range(1, 1501)]
    for name in ("minutes", "fare"):
        three, one = ([float(row[name]) for row in predicted[number]] for number in (3, 1))
        assert len(set(three)) > 1000
        assert three == pytest.approx(one, rel=1e-5)
    for node in (1, 2, 3):
        assert cluster.on(node, "ls -d /home/lockstep/lockstep/runs/ssh-regression/predict", check=False) == ""


def test_one_line_makes_fit_that_of_five_ssh_hosts(cluster: Lab, tmp_path):
    done = cluster.play("train", f"script={SCRIPTS}/distributed.py", "args=0.01", "run=distributed", "outputs=none").stdout
    assert "distributed: SUCCEEDED" in done
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "trainer" / "keras_fit" / "site"), "TF_CPP_MIN_LOG_LEVEL": "2"}
    subprocess.run([sys.executable, SCRIPTS / "distributed.py", "0.01"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    alone, result = (np.load(folder / "result.npz") for folder in (tmp_path, cluster.run("distributed") / "output"))
    for key in alone.files:
        np.testing.assert_allclose(result[key], alone[key], rtol=1e-4, atol=1e-6, err_msg=key)


def test_a_script_killed_on_one_ssh_host_ends_on_all_and_the_host_is_named(cluster: Lab, tmp_path):
    (tmp_path / "main.py").write_text("import os, signal\nprint('pid', os.getpid(), flush=True)\nsignal.pause()\n")
    playbook = cluster.start("train", f"script={tmp_path}", "run=endless")
    try:
        await_during(playbook, lambda: "pid " in cluster.own(3, "endless", "worker.log"), 60, "its start")
        cluster.on(3, f"kill -9 {cluster.own(3, 'endless', 'worker.log').rpartition('pid ')[2].split()[0]}")
        output, _ = playbook.communicate(timeout=90 * SLOWEST)
    finally:
        if playbook.poll() is None:
            playbook.send_signal(signal.SIGINT)
            playbook.wait(60)
    assert playbook.returncode != 0
    assert "First failure: node3 (rank 2) was killed by SIGKILL" in output, output
    assert cluster.summary("endless")["state"] == "FAILED"
    others = [cluster.run("endless") / "workers" / name / "exit.json" for name in NAMES if name != "node3"]
    assert all(json.loads(end.read_text())["exit_code"] for end in others)


ENDLESS = """
import keras, lockstep, numpy as np
x = np.ones((64, 2), np.float32)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
lockstep.distribute(model).fit(x, x[:, :1], epochs=1_000_000, verbose=2)
"""


def test_a_script_whose_host_is_unplugged_ends_everywhere(cluster: Lab, tmp_path):
    (tmp_path / "main.py").write_text(ENDLESS)
    run, others = "cut-script", [number for number in range(1, NODES + 1) if number != 3]

    cluster.play("train", f"script={tmp_path}", f"run={run}", "detach=true")
    await_until(lambda: "Epoch 9/" in cluster.own(1, run, "worker.log"), 120, "training")
    with cluster.unplugged(3):
        await_until(lambda: all(cluster.own(number, run, "exit.json") for number in others), 120, "the end of the others")
        ends = [json.loads(cluster.own(number, run, "exit.json")) for number in others]
        logs = "".join(cluster.own(number, run, "worker.log") for number in others)
    assert {end["exit_code"] for end in ends} == {75}, logs
    assert f"rank 2 ({cluster.address(3)}) stopped answering: it is frozen, or its host or network is gone" in logs
    cluster.play("stop", f"run={run}")


@EXHAUSTIVE(*ASYNCHRONOUS)
def test_five_ssh_hosts_train_asynchronously_and_go_on_without_a_worker(cluster: Lab):
    """The first hands out steps and keeps the weights; a worker that is killed starts again alone."""
    example, run = f"{cluster.root}/examples/taxi.py", "ssh-rides"
    more = "workers=5", "epochs=12", "set=strategy.name=parameter_server,train.batch_size=64,train.steps_per_call=2,train.monitor=val_auc"
    playbook = cluster.start("train", f"run={run}", f"model={example}:build", f"dataset={example}:data", *more)
    await_during(playbook, lambda: '"kind": "steps"' in cluster.own(1, run, "metrics.jsonl"), 180, "the first step")
    before = json.loads(cluster.own(5, run, "supervisor.json"))["pids"]["worker"]
    cluster.on(5, f"kill -9 {before}")
    output, _ = playbook.communicate(timeout=300 * SLOWEST)
    assert playbook.returncode == 0, output
    summary = json.loads((cluster.run(run) / "summary.json").read_text())
    assert (summary["state"], summary["restarts"], summary["workers"]) == ("SUCCEEDED", 0, 5)
    assert summary["best"]["val_auc"] > 0.9
    assert "the others go on (restart 1 of this host)" in (cluster.run(run) / "workers" / "node5" / "worker.log").read_text()


@pytest.fixture
def roles(cluster: Lab) -> Iterator[None]:
    """node4 only keeps weights, node5 only evaluates."""
    groups = cluster.root / "inventory" / "lab" / "roles.yml"
    groups.write_text("parameter_servers:\n  hosts:\n    node4:\n      worker_role: ps\nevaluators:\n  hosts:\n    node5:\n")
    yield
    groups.unlink()


@EXHAUSTIVE(*ASYNCHRONOUS)
@pytest.mark.usefixtures("roles")
def test_five_ssh_hosts_have_four_roles(cluster: Lab):
    """Each epoch is evaluated on a host of its own, and those numbers are what `evaluate.yml` finds."""
    example, run = f"{cluster.root}/examples/taxi.py", "ssh-roles"
    settings = "set=strategy.name=parameter_server,train.batch_size=64,train.steps_per_call=2,train.monitor=val_auc"
    given = f"model={example}:build", f"dataset={example}:data", "workers=3", "epochs=3", settings
    shown = cluster.play("train", f"run={run}", *given, timeout=600).stdout
    assert "node1 hands out steps, node2, node3 compute, node4 keeps the weights, node5 evaluates snapshots" in shown
    rows = EvaluationTable(cluster.run(run) / "evaluations.csv").metrics
    assert sorted(rows) == [1, 2, 3]
    cluster.play("evaluate", f"run={run}", "epoch=3")
    assert EvaluationTable(cluster.run(run) / "evaluations.csv").metrics[3] == pytest.approx(rows[3], rel=1e-5)
    for node in range(1, NODES + 1):
        assert cluster.on(node, "ss -Htln sport = :12345 or sport = :12845") == "", "nobody listens any more"
