"""A worker that Slurm starts: its place, its files, what it gives back."""

import json
import socket

import pytest

from trainer import slurm
from trainer.errors import ClusterError

NODES = ["alpha", "beta", "gamma"]
ADDRESSES = {"alpha": "10.0.0.1", "beta": "10.0.0.2", "gamma": "10.0.0.3", "self": "127.0.1.1"}


def environment(rank=1, tasks=3, **more):
    return {"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(tasks), "SLURM_STEP_NODELIST": "node[1-3]", **more}


def refused(work, *arguments):
    with pytest.raises(ClusterError) as caught:
        work(*arguments)
    return str(caught.value)


def test_the_place_follows_from_the_allocation():
    found = slurm.allocation(environment(), lambda listed: {"node[1-3]": NODES}[listed])
    assert (found.rank, found.nodes, found.node) == (1, NODES, "beta")
    made = slurm.tf_config(found, 12345, ADDRESSES.__getitem__)
    assert made == {
        "cluster": {"worker": ["10.0.0.1:12345", "10.0.0.2:12345", "10.0.0.3:12345"]},
        "task": {"type": "worker", "index": 1},
    }


def test_names_are_expanded_by_slurm_itself(tmp_path, monkeypatch):
    (tmp_path / "scontrol").write_text('#!/bin/sh\n[ "$1 $2 $3" = "show hostnames x[1-2]" ] && printf "x1\\nx2\\n"\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert slurm.hostnames("x[1-2]") == ["x1", "x2"]


def test_what_no_srun_started_is_refused():
    assert refused(slurm.allocation, {}) == (
        "'SLURM_PROCID': not set as srun sets it; this command is started by srun, one task a node (train.sbatch)"
    )
    said = refused(slurm.allocation, environment(tasks=6), lambda _: NODES)
    assert said == "SLURM_NTASKS=6 on 3 nodes (node[1-3]): one worker a node; ask for --ntasks-per-node=1"


def test_names_that_mean_no_address_or_the_node_itself_are_refused():
    def unknown(_):
        raise socket.gaierror("Name or service not known")

    found = slurm.Allocation(0, ["self"])
    assert "self: its name means 127.0.1.1, which no other node reaches" in refused(slurm.tf_config, found, 1, ADDRESSES.__getitem__)
    assert "self: its name means no address here (Name or service not known)" in refused(slurm.tf_config, found, 1, unknown)


def test_a_port_that_is_taken_is_refused():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert refused(slurm.check_port, port).startswith(f"port {port}: Address already in use; another run")
    slurm.check_port(port)


@pytest.fixture
def place(tmp_path):
    job = tmp_path / "shared" / "run1"
    job.mkdir(parents=True)
    (job / "config.yml").write_text("seed: 1\n")
    made = slurm.Place(job, tmp_path / "root", tmp_path / "packs", tmp_path / "caches", 12345, 1, 0, 300.0)
    (made.run / "workers" / "alpha").mkdir(parents=True)
    return made


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_chief_takes_the_newest_state_and_each_its_own_memory(rank, place):
    own = place.run / "workers" / "alpha"
    write(place.job / "state" / "step-000000020.npz", "newer")
    write(place.job / "history.csv", "epoch")
    write(place.run / "state" / "step-000000010.npz", "older")
    write(place.job / "workers" / "alpha" / "memory" / "step-000000020.npz", "memory")
    write(own / "exit.json", "{}")
    write(own / "metrics.jsonl", "{}")
    slurm.take(place, slurm.Allocation(rank, ["alpha", "alpha"]), own)
    assert (place.run / "config.yml").read_text() == "seed: 1\n"
    assert (place.run / "state" / "step-000000020.npz").exists() == (rank == 0)
    assert (place.run / "history.csv").exists() == (rank == 0)
    assert (own / "memory" / "step-000000020.npz").read_text() == "memory"
    assert not (own / "exit.json").exists()
    assert not (own / "metrics.jsonl").exists()


def test_an_older_state_is_not_taken(place):
    write(place.job / "state" / "step-000000010.npz", "older")
    write(place.run / "state" / "step-000000020.npz", "newer")
    slurm.take(place, slurm.Allocation(0, ["alpha"]), place.run / "workers" / "alpha")
    assert [path.name for path in (place.run / "state").iterdir()] == ["step-000000020.npz"]


@pytest.mark.parametrize("rank", [0, 1])
def test_what_was_made_is_given_back_once_and_old_states_go(rank, place):
    own, found = place.run / "workers" / "alpha", slurm.Allocation(rank, ["alpha", "alpha"])
    write(own / "exit.json", "{}")
    write(place.run / "state" / "step-000000020.npz", "new")
    write(place.run / "checkpoints" / "epoch-0001.keras", "weights")
    write(place.run / "checkpoints" / ".part-x.keras", "half")
    write(place.job / "state" / "step-000000010.npz", "old")
    slurm.give_back(place, found, own)
    assert (place.job / "workers" / "alpha" / "exit.json").read_text() == "{}"
    chief = rank == 0
    assert sorted(path.name for path in (place.job / "state").iterdir()) == [f"step-0000000{20 if chief else 10}.npz"]
    assert [path.name for path in place.job.glob("checkpoints/*")] == (["epoch-0001.keras"] if chief else [])
    if chief:
        before = (place.job / "checkpoints" / "epoch-0001.keras").stat().st_ino
        slurm.give_back(place, found, own)
        assert (place.job / "checkpoints" / "epoch-0001.keras").stat().st_ino == before


def test_a_task_that_cant_begin_says_why_in_its_log_and_how_it_ended(place, monkeypatch, capfd):
    monkeypatch.setattr(slurm, "allocation", lambda: slurm.Allocation(0, ["alpha"]))
    monkeypatch.setattr(slurm, "_into", lambda log: None)
    monkeypatch.setattr(slurm, "check_port", lambda port: (_ for _ in ()).throw(ClusterError(f"port {port} is taken")))
    assert slurm.main(place) == 1
    ended = json.loads((place.job / "workers" / "alpha" / "exit.json").read_text())
    assert (ended["host"], ended["rank"], ended["exit_code"]) == ("alpha", 0, 1)
    assert ended["started_at"] <= ended["ended_at"]
    assert capfd.readouterr().err == "error: port 12345 is taken\n"
