"""What the benchmarks' plans show and refuse, as tasks without Ansible: no host is touched, and nothing is left."""

import dataclasses
from types import SimpleNamespace

import pytest
from ansible import context
from ansible.errors import AnsibleError

from benchmarks.peer_results import peer_trials, peers_results, peers_wheels
from benchmarks.shared import benchmark
from benchmarks.tasks import plan_inference, plan_loader, plan_peers, run_accuracy
from control.common import command_line, project
from control.common.task import Task
from trainer.common.errors import LockstepError

HOSTS = ("worker1", "worker2")
VARIABLES = {"worker_port": 12345, "worker_root": "/tmp/lockstep", "dfs_path": "/tmp/dfs", "worker_address": "127.0.0.1"}
LOADER, INFERENCE = plan_loader.plan_loader, plan_inference.plan_inference
ACCURACY, PEERS = run_accuracy.run_accuracy, plan_peers.plan_peers
FEW = ("peers=few", "workers=1,2", "rounds=1", "steps=8", "systems=lockstep,ideal,stock-loop,keras-fit-loop")


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """Plan what a user typed: `plan(LOADER, "limit=61", check=True)`."""
    monkeypatch.setattr(benchmark, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(project, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(project, "PRIVATE", tmp_path / "private")
    monkeypatch.setattr(peers_wheels, "ROOT", tmp_path / "peers")
    monkeypatch.setattr(context, "CLIARGS", {})

    def task(kind, *given, check=False):
        variables = dict(one.split("=", 1) for one in given)
        monkeypatch.setattr(command_line, "extra_variables", lambda: variables)
        task_vars = {"groups": {"workers": list(HOSTS)}, "hostvars": dict.fromkeys(HOSTS, VARIABLES)}
        return kind(Task({"packs": str(tmp_path / "packs")}, task_vars, check))

    return task


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (LOADER, "loader=2", "-e loader=2: benchmarks/loader.yml takes no such variable (did you mean loaders?); it takes: dataset, "),
        (LOADER, "loaders=0", "loaders=0: expected whole numbers from 1, as in 3 or 1,3,5 or 1-5"),
        (LOADER, "passes=0", "passes=0: expected a whole number from 1"),
        (LOADER, "dataset=/nonexistent", "dataset=/nonexistent: no such folder or file"),
        (INFERENCE, "device=2", "-e device=2: benchmarks/inference.yml takes no such variable (did you mean devices?); it takes: run, "),
        (INFERENCE, "run=to-predit", "run=to-predit: no such run (did you mean to-predict?); there are: to-predict"),
        (INFERENCE, "batches=1", "batches=1: a batch of 1 can't be cut for 2 devices; ask for more"),
        (ACCURACY, "seed=1", "-e seed=1: benchmarks/accuracy.yml takes no such variable (did you mean seeds?); it takes: accuracy, "),
        (ACCURACY, "set=foo=3", "foo: unknown key"),
        (ACCURACY, "dataset=/nonexistent", "dataset=/nonexistent: no such folder or file"),
        (PEERS, "system=ddp", "-e system=ddp: benchmarks/peers.yml takes no such variable (did you mean systems?); it takes: peers, "),
        (PEERS, "state=gone", "state=gone: it must be present or absent"),
        (PEERS, "peers_path=here", "peers_path=here"),
    ],
)
def test_what_can_not_be_measured_leaves_nothing(kind, given, message, plan, tmp_path):
    run = tmp_path / "runs/to-predict"
    run.mkdir(parents=True)
    for name in ("config.yml", "cluster.json"):
        (run / name).write_text("{}\n")
    with pytest.raises((LockstepError, AnsibleError)) as caught:
        plan(kind, given)
    assert str(caught.value).startswith(message)
    assert not (tmp_path / "results").exists()


def test_a_check_of_loaders_makes_no_picture(plan, tmp_path):
    assert plan(LOADER, "limit=61", check=True) == {"show": "Plan\n  would make 61 pictures, and time passes over them"}
    assert not (tmp_path / "private").exists()


def test_checking_a_new_model_touches_no_host(plan, tmp_path):
    planned = plan(INFERENCE, "config=task_cnn", "batches=4", "passes=1", check=True)
    assert "a new task_cnn of configuration task_cnn" in planned["show"]
    assert [host.name for host in planned["ansible_facts"]["cluster"]] == ["worker1"]
    assert not (tmp_path / "results").exists()


def test_a_check_of_a_comparison_trains_nothing(plan, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(run_accuracy, "Display", lambda: SimpleNamespace(display=shown.append))
    assert plan(ACCURACY, "accuracy=one", "configs=task_cnn", "seeds=1", check=True) == {}
    assert "task_cnn" in shown[0]
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("measured", [0, 2, 6])
def test_cells_without_a_row_are_measured(plan, tmp_path, measured):
    first = plan(PEERS, *FEW, check=True)["ansible_facts"]["peers_plan"]["cells"]
    assert len(first) == 6
    for cell in first[:measured]:
        row = peers_results.Row.failed(peer_trials.Cell(**cell), "")
        peers_results.STORE.put(tmp_path / "results/few/results.csv", dataclasses.replace(row, state=peers_results.MEASURED))
    planned = plan(PEERS, *FEW, check=True)
    assert [f"of them {6 - measured} still to measure" in planned["show"], planned["ansible_facts"]["peers_plan"]["cells"]] == [
        measured > 0,
        first[measured:],
    ]
