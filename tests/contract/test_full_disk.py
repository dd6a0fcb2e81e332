"""A disk that fills stops no training, and the end says what is missing."""

import contextlib
import os
import signal
import subprocess

import pytest

from tests.contract.hosts import ONCE, Hosts
from trainer.common.errors import FAILED, PREEMPTED
from trainer.host.claims import MARK

KILOBYTES = 600


@pytest.fixture
def small_disk():
    """A function that mounts a small file system on a host's run directory; skips without root."""
    mounted = []

    def mount(hosts: Hosts, worker: int):
        place = hosts.run(worker)
        place.mkdir(parents=True)
        mounting = ["mount", "-t", "tmpfs", "-o", f"size={KILOBYTES}k", "tmpfs", str(place)]
        if os.geteuid() != 0 or subprocess.run(mounting, check=False, capture_output=True).returncode != 0:
            pytest.skip("a small disk needs root")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk):
    """Take all space, that of all states but the newest included: a worker would take it for the next."""
    for folder in {path.parent for path in disk.rglob("step-*.npz")}:
        for path in sorted(folder.glob("step-*.npz"))[:-1]:
            path.unlink()
    handle = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with contextlib.suppress(OSError):
        while True:
            os.write(handle, bytes(4096))
    os.close(handle)


def warnings(hosts, worker):
    return [record["text"] for record in hosts.records(worker, "warning")]


@pytest.mark.parametrize(("reduction", "worker"), [("packed", 1), ("powersgd", 2)])
def test_training_goes_on_without_saving(hosts, small_disk, reduction, worker):
    """On the chief's disk lies the state; on another's, what its reduction has not sent, without which a state is none."""
    settings = {"reduction.name": reduction, "reduction.min_elements": 10, "checkpoint.copy": "none", "train.steps": 100, **ONCE}
    settings |= {"checkpoint.snapshots": "last"}
    whole = hosts().train(settings, {"train.steps": 70})
    run = hosts()
    disk = small_disk(run, worker)
    run.hold(14)
    run.launch(settings)
    run.await_held(14)
    run.until(lambda: run.states(1) == ["step-000000010.npz"], "the first epoch's state")
    fill(disk)
    run.hold_at(34, 3 - worker)
    run.until(lambda: any("is not saved: " in text and "Training goes on" in text for text in warnings(run, worker)), "the warning")
    assert "step-000000010.npz" in run.states(1)
    (disk / "filler").unlink()
    run.hold_at(54, 3 - worker)
    run.until(lambda: any("the disk takes files again: all is saved" in text for text in warnings(run, worker)), "all to be saved")
    fill(disk)
    (run.own(1) / MARK).touch()
    run.signal(1, signal.SIGTERM)
    run.end(worker1=FAILED, worker2=FAILED if worker == 2 else PREEMPTED)
    assert "no space left on device" in run.log(worker)
    assert "Traceback" not in run.log(worker)
    (disk / "filler").unlink()
    (run.own(1) / MARK).unlink()
    run.release()
    summary = run.train(settings, {"train.steps": 70})
    assert (summary["exact"], summary["weights_sha256"]) == (True, whole["weights_sha256"])
