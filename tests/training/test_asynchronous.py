"""Asynchronous runs of three hosts: the first hands out steps and keeps the weights, the others compute."""

import json
import os
import re
import signal

import numpy as np
import pytest

from control.remote.worker_files import chief_records, read_records
from control.runs.results.evaluation_table import EvaluationTable
from tests.local_project import children
from tests.project import EXHAUSTIVE, ROOT, SLOWEST, await_during, await_until
from trainer.host import sealed_files
from trainer.host.claims import SUPERVISED
from trainer.rundir.layout import SERVER_LOG
from trainer.rundir.phases import Phase

ROLES = "strategy.name=parameter_server"
SETTINGS = f"seed=3,train.batch_size=10,train.steps_per_call=2,train.steps_per_epoch=100,{ROLES}"


def arguments(run: str, pictures, settings: str = "", epochs: int = 3) -> list[str]:
    more = f"set={SETTINGS}{f',{settings}' if settings else ''}", "workers=3", "preflight=false"
    return [f"run={run}", f"dataset={pictures}", "config=task_cnn", *more, f"epochs={epochs}"]


@pytest.fixture
def roles(project):
    """worker4 only keeps weights, worker5 only evaluates."""
    groups = project.root / "inventory" / "local" / "roles.yml"
    groups.write_text("parameter_servers:\n  hosts:\n    worker4:\n      worker_role: ps\nevaluators:\n  hosts:\n    worker5:\n")
    yield
    groups.unlink()


@pytest.mark.usefixtures("roles")
def test_it_learns_with_a_role_for_each_host(project, pictures):
    """All end by themselves; each snapshot is evaluated while the others train; every example is trained on once per epoch."""
    shown = project.play("train", *arguments("roles", pictures, epochs=2)).stdout
    assert "worker1 hands out steps, worker2, worker3 compute, worker4 keeps the weights, worker5 evaluates snapshots" in shown
    assert "of 10 images, each of one worker" in shown
    summary = project.summary("roles")
    assert (summary["state"], summary["steps"], summary["workers"]) == ("SUCCEEDED", 200, 3)
    for worker in range(1, 6):
        assert json.loads((project.run("roles") / "workers" / f"worker{worker}" / "exit.json").read_text())["exit_code"] == 0
    assert "ps 0 of 1 listens" in project.log(4, "roles")
    assert project.history("roles")[-1]["val_accuracy"] >= 0.9, "a network can tell these classes by their colour"
    records = [record for record in chief_records(project.run("roles")) if record["kind"] == "staleness"]
    # Of each epoch of 100 steps, two in each call, the short last step is a call of its own.
    assert [sum(record["calls"]) for record in records] == [51, 51] == [sum(record["by_worker"]) for record in records]
    for epoch in (1, 2):
        assert f"worker5: epoch {epoch} on the test examples:" in shown
    assert sorted(EvaluationTable(project.run("roles") / "evaluations.csv").metrics) == [1, 2]
    assert f"2 epochs in evaluations.csv; epoch {summary['best']['epoch']} on the test examples" in shown
    columns = re.findall(r"(?m)^ +\d+ +worker\d+ +(\S+(?:, \S+)?) ", project.play("status", "run=roles").stdout)
    assert columns == ["chief", "worker", "worker", "ps", "evaluator"]


@EXHAUSTIVE
@pytest.mark.usefixtures("roles")
def test_an_evaluators_numbers_are_those_of_evaluate(project, pictures):
    """Of the same snapshot."""
    project.play("train", *arguments("evaluated", pictures, epochs=1))
    table = project.run("evaluated") / "evaluations.csv"
    (before,) = EvaluationTable(table).metrics.values()
    project.play("evaluate", "run=evaluated", "epoch=1")
    assert EvaluationTable(table).metrics[1] == before


@pytest.mark.usefixtures("roles")
@EXHAUSTIVE
@pytest.mark.parametrize("lost", ["evaluator", "server"])
def test_a_host_that_trains_nothing_is_started_again(project, pictures, lost):
    run, number = f"lost-{lost}", {"server": 4, "evaluator": 5}[lost]
    playbook = project.start("train", *arguments(run, pictures, "checkpoint.every_steps=20", epochs=6))
    project.await_steps(playbook, run, 130)
    os.kill(project.pids(number, run)["worker"], signal.SIGKILL)
    output, _ = playbook.communicate(timeout=240 * SLOWEST)
    assert playbook.returncode == 0, output
    summary = project.summary(run)
    assert (summary["state"], summary["steps"], summary["restarts"]) == ("SUCCEEDED", 600, 1 if lost == "server" else 0)
    assert sorted(EvaluationTable(project.run(run) / "evaluations.csv").metrics) == [1, 2, 3, 4, 5, 6]


@EXHAUSTIVE
@pytest.mark.usefixtures("roles")
def test_a_run_ends_well_without_its_evaluator(project, pictures):
    """What is watched, and what is not evaluated, say so; a command that comes back watches those that train."""
    run = "left-alone"
    settings = "recovery.hang=20,recovery.rejoin_wait=15"
    project.play("train", *arguments(run, pictures, settings, epochs=30), "detach=true")
    await_until(lambda: project.steps(1, run) > 130, 120, "training")
    supervisor = project.pids(5, run)["supervisor"]
    (project.node(5, run) / "workers" / "worker5" / SUPERVISED).unlink()
    os.kill(supervisor, signal.SIGKILL)
    shown = project.play("train", f"run={run}").stdout
    assert f"{run} goes on without worker5 (evaluators)" in shown
    assert f"{run}: SUCCEEDED" in shown
    assert re.search(r"epochs [0-9,]+ are not evaluated: .* Fix: ansible-playbook evaluate.yml", shown)
    assert project.summary(run)["steps"] == 3000
    assert [one["host"] for one in project.summary(run)["lost"]] == ["worker5"]


@EXHAUSTIVE
def test_a_chief_keeps_the_weights_itself(project, pictures):
    """Both others compute, and neither waits for the other."""
    shown = project.play("train", *arguments("apart", pictures), "evaluate=true").stdout
    assert "asynchronous, any staleness: worker1 hands out steps, worker2, worker3 compute, worker1 keeps the weights" in shown
    records = [record for record in chief_records(project.run("apart")) if record["kind"] == "staleness"]
    assert all(min(record["by_worker"]) > 0 for record in records), "both compute"
    assert max(max(record["staleness"]) for record in records) > 0, "neither waits for the other"
    assert "ps 0 of 1 listens" in project.log(1, "apart", SERVER_LOG)
    assert "worker 1 of 2 listens" in project.log(3, "apart")
    assert "apart on its test images" in shown


@EXHAUSTIVE
def test_a_compiled_model_trains_with_its_own_optimizer(project):
    """The taxi model, whose two parts have an optimizer each; no step of it is counted twice or lost."""
    example = ROOT / "examples" / "taxi.py"
    given = [f"model={example}:build", f"dataset={example}:data", "workers=3", "preflight=false", "epochs=3"]
    settings = f"set={ROLES},train.batch_size=64,train.steps_per_call=2,train.monitor=val_auc,model.learning_rate=0.005"
    project.play("train", "run=rides", *given, settings)
    summary = project.summary("rides")
    assert summary["best"]["val_auc"] > 0.9
    state = np.load(max((project.node(1, "rides") / "state").glob("step-*.npz")))
    counts = [int(state[name]) for name in state.files if state[name].shape == () and state[name].dtype.kind == "i"]
    assert summary["steps"] in counts, "the optimizer has counted every step"


@EXHAUSTIVE
def test_a_bound_of_staleness_holds(project, pictures):
    """With 0, all end a round before the next begins: a call is at most the one other of its round behind."""
    project.play("train", *arguments("bounded", pictures, "strategy.staleness=0", epochs=1))
    (record,) = [record for record in chief_records(project.run("bounded")) if record["kind"] == "staleness"]
    assert max(record["staleness"]) <= 2, "two steps of the other worker's call"


@EXHAUSTIVE
def test_others_go_on_without_a_killed_worker(project, pictures):
    """Until it is back, which its own supervisor sees to; how a silent one is ended is a matter of all supervisors."""
    run = "worker-killed"
    playbook = project.start("train", *arguments(run, pictures, epochs=8))
    project.await_steps(playbook, run, 60)
    before = project.pids(3, run)["worker"]
    os.kill(before, signal.SIGKILL)
    project.await_steps(playbook, run, project.steps(1, run) + 20)
    await_during(playbook, lambda: project.has_another(3, run, before), 60, "the next worker")
    output, _ = playbook.communicate(timeout=240 * SLOWEST)
    assert playbook.returncode == 0, output
    summary = project.summary(run)
    assert (summary["state"], summary["steps"], summary["restarts"]) == ("SUCCEEDED", 800, 0)
    named = r"this worker was killed by SIGKILL.*; it starts again, and the others go on \(restart 1 of this host\)"
    assert re.search(named, project.log(3, run))
    assert re.search(f"worker3: {named}", output), output


@EXHAUSTIVE
@pytest.mark.parametrize("lost", ["server", "chief", "supervisor"])
def test_all_start_again_without_chief_or_server(project, pictures, lost):
    run = f"without-{lost}"
    playbook = project.start("train", *arguments(run, pictures, "checkpoint.every_steps=20"))
    project.await_steps(playbook, run, 130)
    pids = project.pids(1, run)
    (server,) = children(pids["worker"])
    os.kill({"chief": pids["worker"], "server": server, "supervisor": pids["supervisor"]}[lost], signal.SIGKILL)
    output, _ = playbook.communicate(timeout=240 * SLOWEST)
    assert playbook.returncode == 0, output
    summary = project.summary(run)
    assert (summary["state"], summary["steps"], summary["restarts"]) == ("SUCCEEDED", 300, 1)
    for worker in (1, 2, 3):
        records = read_records(project.run(run) / "workers" / f"worker{worker}" / "metrics.jsonl")
        assert max(record["number"] for record in records if record["kind"] == "generation") == 2


@EXHAUSTIVE
def test_it_stops_with_its_state_and_continues(project, pictures):
    """All processes are sent SIGTERM, the server, too, from which the chief reads what it saves."""
    run = "stopped-apart"
    project.play("train", *arguments(run, pictures, epochs=500), "detach=true")
    await_until(lambda: project.steps(1, run) > 40, 120, "40 steps")
    shown = project.play("status", f"run={run}").stdout
    assert shown.count(Phase.SERVING) == 2
    logs = project.play("logs", f"run={run}", "role=ps").stdout
    assert "lines of ps.log" in logs
    assert "ps 0 of 1 listens" in logs
    assert "worker2:" not in logs
    project.play("stop", f"run={run}")
    summary = project.summary(run)
    assert summary["state"] == "CANCELLED"
    steps = summary["steps"]
    assert 40 < steps < 50_000
    assert sealed_files.names(project.node(1, run) / "state")[-1] == f"step-{steps:09d}.npz" == f"step-{project.steps(1, run):09d}.npz"
    for worker in (1, 2, 3):
        assert json.loads((project.run(run) / "workers" / f"worker{worker}" / "exit.json").read_text())["exit_code"] == 42
    epochs = steps // 100 + 2
    again = project.play("train", f"run={run}", f"epochs={epochs}")
    assert f"{run}: SUCCEEDED" in again.stdout
    assert project.summary(run)["steps"] == 100 * epochs
