"""The training state survives: stopped, killed, damaged, lost, or saved by time, a run ends with the weights of an undisturbed one.

That a real model's state holds all that training changes is proven in `tests/training`. The tests of `cut`, and those of `disks`, follow
one another: each is the life of one run.
"""

import shutil
import signal
from collections.abc import Iterator

import numpy as np
import pytest

from tests.contract.hosts import ONCE, RECOVERY, Hosts
from tests.unit.samples import flip_a_bit
from trainer.common.errors import PREEMPTED, RESTART
from trainer.host.claims import MARK

STEPS = "train.steps"
SNAPSHOTS = "checkpoint.snapshots"
COMPRESSED = {"reduction.name": "powersgd", "reduction.min_elements": 10}
WITHOUT_COPY = {"checkpoint.copy": "none"}
UNDISTURBED = {
    1: {SNAPSHOTS: "best"},
    2: {SNAPSHOTS: 3, **COMPRESSED},
    3: {SNAPSHOTS: "last", "checkpoint.every_seconds": 0.001, **COMPRESSED},
}
"""Settings of runs that nothing disturbs, by their number of workers."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory, scratch, pictures) -> dict[int, Hosts]:
    """The hosts of runs of 40 steps that nothing has disturbed, by their number."""
    made = {workers: Hosts(tmp_path_factory.mktemp("undisturbed"), scratch, pictures, workers) for workers in UNDISTURBED}
    for workers, run in made.items():
        run.train(UNDISTURBED[workers])
    return made


@pytest.fixture(scope="module")
def undisturbed(trained) -> str:
    """The weights' digest of such a run."""
    return trained[2].summary()["weights_sha256"]


def life(tmp_path_factory, scratch, pictures) -> Iterator[Hosts]:
    """Two hosts for several tests."""
    run = Hosts(tmp_path_factory.mktemp("life"), scratch, pictures)
    yield run
    run.close()


cut, disks = (pytest.fixture(scope="module", name=name)(life) for name in ("cut", "disks"))


def _memory(hosts: Hosts) -> list[list[int]]:
    """What each worker's reduction remembers at the end."""
    files = [sorted((hosts.own(worker) / "memory").glob("step-*.npz"))[-1] for worker in range(1, hosts.workers + 1)]
    return [np.load(path)["0000"].tolist() for path in files]


def newest(hosts: Hosts, worker: int):
    """The newest state on a host."""
    return hosts.run(worker) / "state" / hosts.states(worker)[-1]


def test_any_number_of_workers_trains_the_same_examples(trained):
    """The partition is exact: each step's global batch is the same, whoever trains it."""
    assert len({run.summary()["weights_sha256"] for run in trained.values()}) == 1


@pytest.mark.parametrize(("workers", "left"), [(1, [4]), (2, [3, 4]), (3, [4])])
def test_snapshots_are_kept_as_asked(trained, workers, left):
    kept = (trained[workers].run(1) / "checkpoints").iterdir()
    assert sorted(path.name for path in kept) == [f"epoch-{epoch:04d}.keras" for epoch in left]


def test_by_time_all_save_after_the_same_steps(trained):
    saved = [[one["note"] for one in trained[3].records(worker, "phase") if one["phase"] == "saving"] for worker in (1, 2, 3)]
    assert saved[0] == saved[1] == saved[2]
    assert any(note.startswith("step ") for note in saved[0])


def stop(run: Hosts) -> None:
    """Ask one worker to stop, as `stop.yml` does."""
    (run.own(2) / MARK).touch()
    run.signal(2, signal.SIGTERM)
    run.end(worker1=PREEMPTED, worker2=PREEMPTED)
    (run.own(2) / MARK).unlink()
    run.release()


def test_a_stop_in_the_last_call_counts(cut):
    """It is asked for in the second epoch's call of nine steps, and seen in that of its last step, which ends the epoch, too."""
    cut.hold(14)
    cut.launch({STEPS: 30, "train.steps_per_call": 10})
    cut.await_inside(14)
    stop(cut)
    summary = cut.summary()
    assert (summary["state"], summary["steps"], summary["epochs_done"]) == ("CANCELLED", 20, 2)
    assert cut.epochs() == [1, 2]


def test_a_stop_inside_an_epoch_is_saved(cut):
    """Somebody asks one worker, and all save the state of one step."""
    cut.hold(22)
    cut.launch({STEPS: 30})
    cut.await_held(22)
    stop(cut)
    assert cut.summary()["state"] == "CANCELLED"
    assert 22 < cut.summary()["steps"] < 30
    assert cut.states(1) == cut.states(2)


def test_a_signal_from_elsewhere_preempts_all_workers(cut):
    """It trains to more steps than asked for at first."""
    cut.hold(28)
    cut.launch(ONCE)
    cut.await_held(28)
    cut.signal(2, signal.SIGTERM)
    cut.end(worker1=PREEMPTED, worker2=PREEMPTED)
    cut.release()
    assert cut.summary()["state"] == "PREEMPTED"


def test_a_killed_worker_ends_the_others_without_supervisors(cut):
    cut.hold(34)
    cut.launch(ONCE)
    cut.await_held(34)
    cut.signal(2, signal.SIGKILL)
    cut.end(worker1=RESTART, worker2=-signal.SIGKILL)
    cut.release()
    assert "closed its connection: it ended; this worker ends so that all can start again" in cut.log(1)


def test_the_time_limit_cancels(cut):
    cut.launch({"train.time_limit": 0.001})
    cut.end(worker1=PREEMPTED, worker2=PREEMPTED)
    assert cut.summary()["state"] == "CANCELLED"
    assert cut.summary()["steps"] < 40


def test_after_all_that_it_ends_exactly(cut, undisturbed):
    """Each launch continued from the state saved last; the launch with a killed worker, which saved none, is not counted."""
    summary = cut.train()
    assert (summary["weights_sha256"], summary["exact"], summary["restarts"]) == (undisturbed, True, 4)
    assert cut.epochs() == [1, 2, 3, 4]


def test_without_a_copy_an_older_state_serves(disks):
    """One without a digest, as older versions wrote it."""
    disks.train(WITHOUT_COPY, {STEPS: 20})
    assert not disks.states(2)
    older, path = sorted((disks.run(1) / "state").glob("*.npz"))
    with np.load(older) as stored:
        np.savez(older, **{name: stored[name] for name in stored.files})
    path.write_bytes(path.read_bytes()[:-1000])
    disks.train({STEPS: 20})
    assert "without a digest, as older versions wrote it" in disks.log(1)
    assert "all workers continue from the state of step 10 of rank 0" in disks.log(1)
    assert list((disks.run(1) / "damaged").iterdir())


def test_without_the_chiefs_disk_the_copy_serves(disks, undisturbed):
    """First its state is damaged, then all is lost but the other worker's copy."""
    flip_a_bit(newest(disks, 1))
    disks.train({STEPS: 30})
    assert "damaged; all workers continue from the state of step 20 of rank 1 (127.0.0.1) instead" in disks.log(1)
    shutil.rmtree(disks.run(1))
    summary = disks.train()
    assert "the chief has no training state: all workers continue from the state of step 30 of rank 1" in disks.log(1)
    assert (summary["weights_sha256"], summary["exact"]) == (undisturbed, True)
    assert disks.epochs() == [1, 2, 3, 4]


def test_a_restart_uses_a_damaged_states_copy(hosts, trained):
    """Nobody types anything: the state is damaged while the workers train, then one of them is killed.

    What a worker has not sent belongs to the state of the same step.
    """
    run = hosts()
    run.hold(14)
    run.launch(COMPRESSED, RECOVERY, {"checkpoint.keep": 1})
    run.await_held(14)
    run.until(lambda: run.states(1) == run.states(2) == ["step-000000010.npz"], "the state of the first epoch")
    flip_a_bit(newest(run, 1))
    run.kill(1)
    run.release()
    run.end()
    assert "damaged; all workers continue from the state of step 10 of rank 1" in run.log(1)
    summary = run.summary()
    assert (summary["restarts"], summary["exact"]) == (1, True)
    assert summary["weights_sha256"] == trained[2].summary()["weights_sha256"]
    assert _memory(run) == _memory(trained[2])


def test_what_was_lost_unsent_starts_anew(hosts, trained):
    """Without a worker's part, and with fewer workers: what all of them remember starts anew, and the result says so."""
    run = hosts(workers=3)
    run.train(COMPRESSED, {STEPS: 20})
    shutil.rmtree(run.own(1) / "memory")
    run.train(COMPRESSED)
    assert not [one for one in _memory(run) if one in _memory(trained[3])]
    run.drop_the_last()
    summary = run.train(COMPRESSED, {STEPS: 50})
    anew = "what the reduction had not sent at step {} started anew ({})"
    reasons = [anew.format(20, "missing or damaged on rank 0"), anew.format(40, "3 workers saved it, 2 go on")]
    for reason in reasons:
        assert f"{reason}: the weights will differ a little" in run.log(1)
    assert (summary["exact"], summary["inexact_because"]) == (False, reasons)
