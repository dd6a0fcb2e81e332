"""A run goes on by itself after a fault, and ends with the weights of an undisturbed one.

That a real worker's weights, optimizer and random numbers survive a kill is proven in `tests/training`; what supervisors decide, in
`tests/unit/trainer/supervision`.
"""

import shutil
import signal

import pytest

from tests.contract.hosts import ELASTIC, RECOVERY, Hosts
from tests.read_only import read_only
from trainer.common.errors import PREEMPTED
from trainer.host.claims import MARK, SUPERVISED
from trainer.rundir.phases import Phase
from trainer.supervision.supervisor import MADE_ROOM


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, scratch, pictures) -> str:
    """The weights' digest of a run that nothing disturbs, and that nobody supervises."""
    return Hosts(tmp_path_factory.mktemp("undisturbed"), scratch, pictures).train()["weights_sha256"]


def begun(hosts, settings, step=14, silence=60.0, **options) -> Hosts:
    """Hosts whose workers wait before a step of their second epoch, with the first epoch's state on their disks."""
    run = hosts(**options)
    run.hold(step)
    run.launch(settings, silence=silence)
    run.await_held(step)
    run.until(lambda: all(run.states(worker) for worker in range(1, 3)), "the first epoch's state")
    return run


def test_killed_workers_start_again_with_all_others(hosts, undisturbed):
    """First a worker, then the chief."""
    run = begun(hosts, RECOVERY)
    killed = run.kill(2)
    run.until(lambda: run.pids(2).get("worker", killed) != killed, "the next worker")
    run.hold_at(24)
    run.kill(1)
    run.release()
    run.end()
    for number, rank in ((1, 1), (2, 0)):
        assert f"rank {rank} (worker{rank + 1}) was killed by SIGKILL at step" in run.log(1)
        assert f"all workers start again from the last saved state (restart {number} of this launch)" in run.log(1)
    summary = run.summary()
    assert (summary["state"], summary["restarts"], summary["exact"]) == ("SUCCEEDED", 2, True)
    assert summary["weights_sha256"] == undisturbed


def test_a_supervisor_killed_for_good_returns(hosts, undisturbed):
    """Its start script starts it again."""
    run = begun(hosts, RECOVERY)
    run.lose(2)
    run.release()
    run.start(2)
    run.end()
    assert "rank 1 (worker2) was lost with its supervisor" in run.log(1)
    assert run.summary()["weights_sha256"] == undisturbed
    assert not (run.own(2) / SUPERVISED).exists()


@pytest.mark.parametrize("worker", [1, 2])
def test_a_removed_run_directory_is_made_again(worker, hosts, undisturbed):
    """The chief's or another's: what was on it comes from the others."""
    run = begun(hosts, RECOVERY)
    shutil.rmtree(run.run(worker))
    run.until((run.own(worker) / "secret").is_file, "the directory")
    run.release()
    run.end()
    assert f"rank {worker - 1} (worker{worker}) lost its run directory, which somebody removed or moved" in run.log(worker)
    summary = run.summary()
    assert (summary["state"], summary["restarts"], summary["weights_sha256"]) == ("SUCCEEDED", 1, undisturbed)
    assert run.epochs() == [1, 2, 3, 4]


def test_a_read_only_disk_is_waited_for(hosts, undisturbed):
    """A worker that starts again needs files."""
    run = begun(hosts, RECOVERY)
    with read_only(run.run(2)):
        run.kill(2)
        run.until(lambda: "which is read-only" in run.log(2), "its supervisor to wait")
        run.release()
    run.end()
    assert "rank 1 (worker2) was killed by SIGKILL" in run.log(1)
    assert "Traceback" not in run.log(2)
    assert run.summary()["weights_sha256"] == undisturbed


def test_a_frozen_worker_is_replaced(hosts, undisturbed):
    """Its supervisor hears no heartbeat for `silence` seconds; on a busy machine it may miss others, too."""
    run = begun(hosts, {"recovery.max_restarts": 50, "recovery.max_restarts_per_hour": 50}, silence=12.0)
    frozen = run.kill(2, signal.SIGSTOP)
    run.until(lambda: run.pids(2).get("worker", frozen) != frozen, "the next worker")
    run.release()
    run.end()
    assert "gave no heartbeat for" in run.log(1)
    assert run.summary()["weights_sha256"] == undisturbed


def test_a_worker_whose_host_restarts_goes_on(hosts, undisturbed):
    """A host that goes down sends SIGTERM to supervisor and worker; at its boot the start script runs again."""
    run = begun(hosts, RECOVERY)
    run.signal(2, signal.SIGTERM)
    run.until(lambda: Phase.DOWN in (run.own(2) / "metrics.jsonl").read_text(), "the host to go down")
    assert run.ended(2) == 42
    assert (run.own(2) / SUPERVISED).exists()
    run.release()
    run.start(2)
    run.end()
    assert "(restart 1 of this launch)" in run.log(1)
    assert run.summary()["weights_sha256"] == undisturbed


@pytest.mark.parametrize(("workers", "lost", "chief"), [(3, 1, 2), (2, 2, 1)])
def test_others_go_on_without_a_host(workers, lost, chief, hosts):
    """Steps, history and result are whole, without the first chief, too."""
    run = begun(hosts, ELASTIC, workers=workers)
    run.lose(lost)
    run.release()
    run.end(**{f"worker{lost}": -signal.SIGKILL})
    assert f"rank {lost - 1} (worker{lost}) did not come back; {workers - 1} of {workers} workers start again" in run.log(chief)
    summary = run.summary(chief)
    assert (summary["state"], summary["steps"], summary["epochs_done"]) == ("SUCCEEDED", 40, 4)
    assert len(set(summary["weights_sha256_by_rank"])) == 1
    assert len(summary["weights_sha256_by_rank"]) == workers - 1
    assert run.epochs(chief) == [1, 2, 3, 4]


def test_a_lost_host_that_is_back_joins(hosts, undisturbed):
    """The others end their epoch for it, and the weights are those that three workers have anyway."""
    run = begun(hosts, ELASTIC, workers=3)
    run.lose(3)
    run.until(lambda: "2 of 3 workers start again" in run.log(1), "the others")
    # All wait until it is at the door.
    run.start(3)
    run.until(lambda: MADE_ROOM in run.log(1), "the end of an epoch for it")
    run.release()
    run.end()
    assert MADE_ROOM in run.log(1)
    summary = run.summary()
    assert (summary["state"], summary["workers"], summary["steps"]) == ("SUCCEEDED", 3, 40)
    assert summary["weights_sha256"] == undisturbed
    assert run.epochs() == [1, 2, 3, 4]


def test_a_spare_takes_a_lost_hosts_place(hosts, undisturbed):
    run = begun(hosts, ELASTIC, workers=2, spares=1)
    run.until(lambda: any(one["phase"] == "standing by" for one in run.records(3, "phase")), "the spare")
    run.lose(2)
    run.release()
    run.end(worker2=-signal.SIGKILL)
    words = "rank 1 (worker2) did not come back; rank 2 (worker3) takes the place of a lost host; all workers start again"
    assert words in run.log(1)
    summary = run.summary()
    assert (summary["state"], summary["workers"], summary["weights_sha256"]) == ("SUCCEEDED", 2, undisturbed)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_supervisor_that_waits_hears_a_signal(number, hosts):
    """Its handler breaks off whatever the main thread waits for; somebody at the terminal leaves the mark with it."""
    run = begun(hosts, RECOVERY)
    run.lose(2)
    run.until(lambda: any(one["phase"] == Phase.REJOINING for one in run.records(1, "phase")), "it to wait")
    if number == signal.SIGTERM:
        (run.own(1) / MARK).touch()
    run.signal(1, number)
    assert run.ended(1) == PREEMPTED
    assert not (run.own(1) / SUPERVISED).exists()
    assert (run.own(1) / MARK).exists()
