"""Fetching a run's files: what is new or changed, whole, and where TensorBoard keeps reading."""

import shutil
import subprocess
from types import SimpleNamespace

import pytest

from plugins.shared.remote import Worker


@pytest.fixture
def worker(tmp_path):
    """A worker whose host is this machine."""

    def execute(command, sudoable, executable):
        done = subprocess.run([executable, "-c", command], capture_output=True, text=True, check=False)
        return {"rc": done.returncode, "stdout": done.stdout, "stderr": done.stderr}

    connection = SimpleNamespace(fetch_file=shutil.copyfile, transport="ssh")
    remote = tmp_path / "there"
    for name, text in {
        "history.csv": "epoch\n1\n",
        "config.yml": "a: 1\n",
        "checkpoints/epoch-0001.keras": "weights",
        "state/step-1.npz": "state",
        "logs/train/events.out.tfevents.1": "one",
        "workers/pi1/metrics.jsonl": '{"t": 1.0, "kind": "phase"}\n',
    }.items():
        (remote / name).parent.mkdir(parents=True, exist_ok=True)
        (remote / name).write_text(text)
    made = Worker(
        SimpleNamespace(_low_level_execute_command=execute, _connection=connection), str(remote), str(remote / "workers/pi1"), "s"
    )
    return made, remote, tmp_path / "here"


def test_what_is_new_is_fetched_once(worker):
    made, remote, here = worker
    fetched = made.collect(here)
    assert sorted(fetched) == [
        *(
            "checkpoints/epoch-0001.keras",
            "history.csv",
            "logs/train/events.out.tfevents.1",
            "state/step-1.npz",
            "workers/pi1/metrics.jsonl",
        )
    ]
    assert made.collect(here) == []
    (remote / "history.csv").write_text("epoch\n1\n2\n")
    assert made.collect(here) == ["history.csv"]
    assert (here / "history.csv").read_text() == "epoch\n1\n2\n"


@pytest.mark.parametrize("only", [None, "workers/pi1"])
def test_states_that_a_worker_replaced_are_dropped_here_and_those_of_a_lost_disk_kept(worker, only):
    made, remote, here = worker
    for step in (1, 2, 3):
        for folder in ("state", "workers/pi1/memory"):
            (remote / folder).mkdir(exist_ok=True)
            (remote / folder / f"step-{step}.npz").write_text("state")
            if step > 1:
                (remote / folder / f"step-{step - 1}.npz").unlink()
        made.collect(here, only)
    assert [path.name for path in (here / "workers/pi1/memory").iterdir()] == ["step-3.npz"]
    assert [path.name for path in (here / "state").iterdir()] == ["step-3.npz"] if only is None else not (here / "state").exists()
    shutil.rmtree(remote / "workers")
    (remote / "workers/pi1").mkdir(parents=True)
    made.collect(here, only)
    assert [path.name for path in (here / "workers/pi1/memory").iterdir()] == ["step-3.npz"]


def test_a_trials_weights_stay_where_they_are(worker):
    made, _, here = worker
    made.collect(here, without=("checkpoints", "state"))
    assert sorted(path.name for path in here.iterdir()) == ["history.csv", "logs", "workers"]


def test_only_a_workers_own_folder(worker):
    made, _, here = worker
    assert made.collect(here, "workers/pi1") == ["metrics.jsonl"]
    assert [path.name for path in here.iterdir()] == ["workers"]


def test_an_event_file_grows_in_place(worker):
    """TensorBoard keeps it open; of a file that took its place it would see nothing."""
    made, remote, here = worker
    made.collect(here)
    with (here / "logs/train/events.out.tfevents.1").open() as opened:
        assert opened.read() == "one"
        events = remote / "logs/train/events.out.tfevents.1"
        events.write_text("one, two")
        assert made.collect(here) == ["logs/train/events.out.tfevents.1"]
        assert opened.read() == ", two"
    assert made.collect(here) == []
    assert not list(here.rglob(".part-*"))


def test_a_hosts_clock_is_compared_with_this_machines(worker):
    made, remote, _ = worker
    (remote / "workers/pi1/exit.json").write_text('{"exit_code": 0, "ended_at": 5.0}')
    seen = made.look()
    assert abs(seen.ahead) < 1
    assert (seen.exit["ended_at"], seen.records, seen.alive) == (5.0, [{"t": 1.0, "kind": "phase"}], False)
