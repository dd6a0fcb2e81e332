"""The training state survives: stopped, killed, damaged, lost, or saved by time, a run ends with the weights of an undisturbed one.

That a real model's state holds all that training changes is proven in `tests/training`.
"""

import shutil
import signal

import numpy as np
import pytest

from tests.contract.hosts import ONCE, RECOVERY, Hosts
from tests.unit.samples import flip_a_bit
from trainer.errors import PREEMPTED, RESTART
from trainer.supervision.child import MARK

STEPS = "train.steps"
COMPRESSED = {"reduction.name": "powersgd", "reduction.min_elements": 10}
WITHOUT_COPY = {"checkpoint.copy": "none"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, scratch, pictures) -> str:
    """The weights' digest of a run of 40 steps that nothing disturbs."""
    return Hosts(tmp_path_factory.mktemp("undisturbed"), scratch.root, pictures).train()["weights_sha256"]


@pytest.fixture(scope="module")
def compressed(tmp_path_factory, scratch, pictures) -> dict:
    """The result of such a run with PowerSGD, whose workers each remember what they have not sent."""
    hosts = Hosts(tmp_path_factory.mktemp("compressed"), scratch.root, pictures)
    return hosts.train(COMPRESSED) | {"memory": _memory(hosts)}


def _memory(hosts: Hosts) -> list[list[int]]:
    """What each worker's reduction remembers at the end."""
    files = [sorted((hosts.own(worker) / "memory").glob("step-*.npz"))[-1] for worker in (1, 2)]
    return [np.load(path)["0000"].tolist() for path in files]


def newest(hosts: Hosts, worker: int):
    """The newest state on a host."""
    return hosts.run(worker) / "state" / hosts.states(worker)[-1]


@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers_trains_the_same_examples(hosts, undisturbed, workers):
    """The partition is exact: each step's global batch is the same, whoever trains it."""
    assert hosts(workers=workers).train()["weights_sha256"] == undisturbed


def test_stopped_inside_an_epoch_it_continues_exactly(hosts, undisturbed):
    """Somebody asks one worker, and all save the state of one step; then more steps than asked for at first."""
    run = hosts()
    run.hold(14)
    run.launch({STEPS: 20})
    run.await_held(14)
    (run.own(2) / MARK).touch()
    run.signal(2, signal.SIGTERM)
    run.end(worker1=PREEMPTED, worker2=PREEMPTED)
    assert run.summary()["state"] == "CANCELLED"
    assert 14 < run.summary()["steps"] < 20
    assert run.states(1) == run.states(2)
    (run.own(2) / MARK).unlink()
    run.release()
    assert run.train({STEPS: 20})["steps"] == 20
    summary = run.train()
    assert (summary["weights_sha256"], summary["exact"], summary["restarts"]) == (undisturbed, True, 2)
    assert run.epochs() == [1, 2, 3, 4]


def test_a_signal_from_elsewhere_preempts_all_workers(hosts, undisturbed):
    run = hosts()
    run.hold(14)
    run.launch(ONCE)
    run.await_held(14)
    run.signal(2, signal.SIGTERM)
    run.end(worker1=PREEMPTED, worker2=PREEMPTED)
    assert run.summary()["state"] == "PREEMPTED"
    run.release()
    assert run.train()["weights_sha256"] == undisturbed


def test_the_time_limit_cancels_and_it_goes_on(hosts, undisturbed):
    run = hosts()
    run.launch({"train.time_limit": 0.001})
    run.end(worker1=PREEMPTED, worker2=PREEMPTED)
    assert run.summary()["state"] == "CANCELLED"
    assert run.summary()["steps"] < 40
    assert run.states(1)
    assert run.train()["weights_sha256"] == undisturbed


def test_a_killed_worker_ends_the_others_without_supervisors(hosts, undisturbed):
    """The same command continues from the last saved state."""
    run = hosts()
    run.hold(14)
    run.launch(ONCE)
    run.await_held(14)
    run.signal(2, signal.SIGKILL)
    run.end(worker1=RESTART, worker2=-signal.SIGKILL)
    assert "closed its connection: it ended; this worker ends so that all can start again" in run.log(1)
    run.release()
    assert run.train()["weights_sha256"] == undisturbed


def test_by_time_all_save_after_the_same_steps(hosts, undisturbed):
    run = hosts()
    summary = run.train({"checkpoint.every_seconds": 0.001})
    saved = [[one["note"] for one in run.records(worker, "phase") if one["phase"] == "saving"] for worker in (1, 2)]
    assert saved[0] == saved[1]
    assert any(note.startswith("step ") for note in saved[0])
    assert summary["weights_sha256"] == undisturbed


def test_without_the_chiefs_disk_the_copy_serves(hosts, undisturbed):
    """First its state is damaged, then all is lost but the other worker's copy."""
    run = hosts()
    run.train({STEPS: 10})
    flip_a_bit(newest(run, 1))
    run.train({STEPS: 20})
    assert "damaged; all workers continue from the state of step 10 of rank 1 (127.0.0.1) instead" in run.log(1)
    assert list((run.run(1) / "damaged").iterdir())
    shutil.rmtree(run.run(1))
    summary = run.train()
    assert "the chief has no training state: all workers continue from the state of step 20 of rank 1" in run.log(1)
    assert (summary["weights_sha256"], summary["exact"]) == (undisturbed, True)
    assert run.epochs() == [1, 2, 3, 4]


def test_without_a_copy_an_older_state_serves(hosts, undisturbed):
    run = hosts()
    run.train(WITHOUT_COPY, {STEPS: 20})
    assert not run.states(2)
    path = newest(run, 1)
    path.write_bytes(path.read_bytes()[:-1000])
    summary = run.train(WITHOUT_COPY)
    assert "all workers continue from the state of step 10" in run.log(1)
    assert (summary["weights_sha256"], summary["exact"]) == (undisturbed, True)


def test_a_restart_uses_a_damaged_states_copy(hosts, undisturbed):
    """Nobody types anything: the state is damaged while the workers train, then one of them is killed."""
    run = hosts()
    run.hold(14)
    run.launch(RECOVERY, {"checkpoint.keep": 1})
    run.await_held(14)
    run.until(lambda: run.states(1) == run.states(2) == ["step-000000010.npz"], "the state of the first epoch")
    flip_a_bit(newest(run, 1))
    run.kill(2)
    run.release()
    run.end()
    assert "damaged; all workers continue from the state of step 10 of rank 1" in run.log(1)
    assert run.summary()["weights_sha256"] == undisturbed


def test_a_state_without_a_digest_is_continued(hosts, undisturbed):
    """As older versions wrote it."""
    run = hosts()
    run.train({STEPS: 20})
    for worker in (1, 2):
        for path in (run.run(worker) / "state").glob("*.npz"):
            with np.load(path) as stored:
                np.savez(path, **{name: stored[name] for name in stored.files})
    assert run.train()["weights_sha256"] == undisturbed
    assert "without a digest, as older versions wrote it" in run.log(1)


def test_what_was_not_sent_survives_a_kill(hosts, compressed):
    """Each worker's part belongs to the state of the same step."""
    run = hosts()
    run.hold(14)
    run.launch(COMPRESSED, RECOVERY)
    run.await_held(14)
    run.until(lambda: bool(run.states(1)), "the first epoch's state")
    run.kill(1)
    run.release()
    run.end()
    summary = run.summary()
    assert (summary["restarts"], summary["exact"], summary["weights_sha256"]) == (1, True, compressed["weights_sha256"])
    assert _memory(run) == compressed["memory"]


def test_what_was_lost_unsent_starts_anew(hosts, compressed):
    """The result says so, and the weights differ."""
    run = hosts()
    run.train(COMPRESSED, {STEPS: 20})
    shutil.rmtree(run.own(1) / "memory")
    summary = run.train(COMPRESSED)
    reason = "what the reduction had not sent at step 20 started anew (missing or damaged on rank 0)"
    assert f"{reason}: the weights will differ a little" in run.log(1)
    assert (summary["exact"], summary["inexact_because"]) == (False, [reason])
    assert _memory(run) != compressed["memory"]


@pytest.mark.parametrize(("policy", "left"), [("best", [4]), ("last", [4]), (3, [3, 4])])
def test_snapshots_are_kept_as_asked(hosts, policy, left):
    run = hosts()
    run.train({"checkpoint.snapshots": policy})
    assert sorted(path.name for path in (run.run(1) / "checkpoints").iterdir()) == [f"epoch-{epoch:04d}.keras" for epoch in left]
