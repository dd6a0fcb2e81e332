"""A disk that fills while a run saves: the run makes room, trains on without saving and warns once. The disk is a small real one."""

import contextlib
import errno
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.unit import forked
from tests.unit.samples import flip_a_bit
from trainer.checkpoint.states import Progress, States
from trainer.common.files import full, shortage, write_text
from trainer.host import sealed_files
from trainer.rundir.full_disk import OTHER_FIX, DiskFull, Log, Reserve, Saver
from trainer.rundir.metrics_log import Metrics

ROOT = Path(__file__).resolve().parents[4]
MB = 1 << 20


@contextlib.contextmanager
def mounted(place, options):
    """A small file system of its own."""
    place.mkdir(exist_ok=True)
    mounting = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mounting, check=False, capture_output=True).returncode != 0:
        pytest.skip("a small disk needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def disk(tmp_path):
    """4 MB."""
    with mounted(tmp_path / "disk", "size=4m") as place:
        yield place


def fill(disk, leave=0):
    """Fill the disk up to the given number of free bytes."""
    handle = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while True:
            os.write(handle, bytes(4096))
    os.ftruncate(handle, os.fstat(handle).st_size - leave)
    os.close(handle)


@pytest.fixture
def states(disk):
    return States(disk / "run" / "state", 2, lambda text: None)


WEIGHTS = [np.zeros(MB // 4, np.float32)]


def write(states, step):
    states.write(WEIGHTS, Progress(step=step))
    states.files.tidy(step)


def saver(states, heard):
    return Saver(heard.append, lambda: states.files.free(1000))


def save(made, states, step):
    return made.save("the state", states.files.path(step), MB, lambda: write(states, step))


def test_older_state_makes_room_and_nobody_is_bothered(disk, states):
    heard = []
    made = saver(states, heard)
    assert [save(made, states, step) for step in (1, 2)] == [True, True]
    fill(disk, leave=MB // 2)
    assert save(made, states, 3)
    assert states.files.steps() == [2, 3]
    assert (heard, made.missing) == ([], {})


def test_without_room_training_warns_and_keeps_its_state(disk, states):
    """Without room training goes on with one warning and the good state stays."""
    heard = []
    made = saver(states, heard)
    assert [save(made, states, step) for step in (1, 2)] == [True, True]
    fill(disk)
    states.files.path(1).unlink()
    fill(disk)
    assert [save(made, states, step) for step in (3, 4, 5)] == [False, False, False]
    assert states.files.steps() == [2]
    assert sealed_files.damage(states.files.path(2)) == ""
    assert len(heard) == 1
    path = states.files.path(3)
    assert heard[0].startswith(f"the state is not saved: {path}: no space left on device (1.0 MB needed, 0.0 MB free). Training goes on")
    assert "delete_run.yml" in heard[0]
    with pytest.raises(DiskFull, match=r"the state is not saved: .*step-000000005.npz: no space left .*\nFix: .* it continues at step 2"):
        made.check(["the state"], "at step 2")
    (disk / "filler").unlink()
    assert save(made, states, 6)
    assert states.files.steps() == [2, 6]
    assert heard[1:] == ["the disk takes files again: all is saved"]
    made.check(["the state"], "at step 6")
    assert not list((disk / "run").rglob(".part-*"))


def test_damaged_newest_state_keeps_the_good_one(disk, states):
    """A damaged newest state is no reason to drop the good one."""
    for step in (1, 2):
        write(states, step)
    flip_a_bit(states.files.path(2))
    fill(disk)
    assert states.files.free(1000)
    assert [path.name for path in (disk / "run").rglob("*.npz")] == ["step-000000001.npz"]


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.ENOENT])
def test_disk_that_fails_for_while_ends_nothing(number, disk, states):
    """As when its server is away: nothing is deleted for room, the next save tries again."""
    heard = []
    made = Saver(heard.append, lambda: pytest.fail("room is not what is missing"))

    def fails():
        raise OSError(number, "x")

    path = states.files.path(1)
    assert not made.save("the state", path, MB, fails)
    words = os.strerror(number).lower()
    assert heard == [f"the state is not saved: {path}: {words}. Training goes on, and the next save tries again. {OTHER_FIX}"]
    with pytest.raises(DiskFull, match=f"{words}\nFix: look at that disk"):
        made.check(["the state"], "at step 0")
    assert save(made, states, 1)
    assert heard[1:] == ["the disk takes files again: all is saved"]


def test_another_error_is_none_of_the_disks():
    def fails():
        raise OSError(errno.EACCES, "Permission denied")

    with pytest.raises(PermissionError):
        Saver(pytest.fail, lambda: True).save("x", Path("/x"), 1, fails)
    assert full(OSError(errno.EDQUOT, "x")) == "Disk quota exceeded"
    assert full(RuntimeError("Can't write data (errno = 28, error message = 'No space left on device')")) == "No space left on device"
    assert full(OSError(errno.EIO, "Input/output error")) == ""


def test_records_wait_for_room_as_heartbeat_goes_on(disk):
    """Records wait for room and the files time is the heartbeat."""
    path = disk / "metrics.jsonl"
    metrics = Metrics(path)
    metrics.phase("training")
    fill(disk)
    os.utime(path, (1, 1))
    for step in range(2000):
        metrics.record("steps", epoch=1, step=step, images_per_s=1.0, loss=1.0, accuracy=0.0, input_wait=0.0, seconds=1.0)
    metrics.record("epoch", epoch=1)
    assert path.stat().st_mtime > 1e9
    (disk / "filler").unlink()
    metrics.phase("validating")
    metrics.heartbeat()
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert records[0]["kind"] == "phase"
    # What fits into the file's last block, and one that waits; then samples are left out.
    steps = [record["step"] for record in records if record["kind"] == "steps"]
    assert steps == list(range(len(steps)))
    assert len(steps) < 50
    assert [record["kind"] for record in records[-3:]] == ["epoch", "phase", "heartbeat"]


def test_warning_finds_room_again_and_again(disk):
    """A warning finds its place on a full disk again and again."""
    reserve = Reserve(disk / ".part-reserve")
    metrics = Metrics(disk / "metrics.jsonl", reserve)
    for number in range(20):
        fill(disk)
        for _ in range(100):
            metrics.phase("training", "x" * 200)
        metrics.warning(f"warning {number} " + "x" * 500)
        assert f"warning {number} " in (disk / "metrics.jsonl").read_text()
    fill(disk)
    reserve.release()
    write_text(disk / "exit.json", "{}")
    (disk / "filler").unlink()
    metrics.heartbeat()
    metrics.heartbeat()
    records = [json.loads(line) for line in (disk / "metrics.jsonl").read_text().splitlines()]
    kinds = [record["kind"] for record in records]
    assert [kinds.count(kind) for kind in ("phase", "warning", "heartbeat")] == [2000, 20, 1]


SCRIPT = """
import sys
from pathlib import Path
from trainer.worker import process
process.quiet_tensorflow()
import keras
from trainer.checkpoint.states import save_snapshot
from trainer.common.files import full
from trainer.worker.telemetry import Events
folder = Path(sys.argv[1])
events, row = Events(folder), dict.fromkeys(("loss", "accuracy", "learning_rate", "images_per_s", "val_loss", "val_accuracy"), 0.5)
model = keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(2000)])
failed = []
for epoch in range(1, 60):
    try:
        events.epoch({**row, "epoch": epoch}, {})
    except Exception as error:
        assert full(error), error
        failed.append(epoch)
        (folder / "filler").unlink()
try:
    save_snapshot(model, folder, 1)
except Exception as error:
    assert full(error), error
    failed.append("snapshot")
print(failed)
import tensorflow as tf
last = sorted((folder / "train").glob("*"))[-1]
print(sum(1 for _ in tf.compat.v1.train.summary_iterator(str(last))))
"""


def test_full_disk_is_reported_and_events_go_on(disk):
    """Events and snapshots say that the disk is full and events go on in a new file."""
    fill(disk)
    (disk / "train").mkdir()
    done = forked.run("-c", SCRIPT, str(disk))
    assert done.returncode == 0, done.stderr
    failed, events = done.stdout.splitlines()[-2:]
    assert failed == "[1, 'snapshot']"
    assert int(events) == 1 + 4 * 58
    assert not list(disk.rglob(".part-*"))


def test_a_full_disks_words_name_missing_inodes(tmp_path):
    """Small files use them up long before the space, and freeing space would not help."""
    with mounted(tmp_path, "size=4m,nr_inodes=8"):
        for number in range(7):
            (tmp_path / str(number)).touch()
        with pytest.raises(OSError, match="No space left") as raised:
            (tmp_path / "one more").touch()
        words = shortage(tmp_path / "state", raised.value, 1000)
    assert words == f"{tmp_path}/state: no space left on device for another file (8 inodes, none is free; 4.2 MB free)"


def test_records_wait_on_a_read_only_disk(tmp_path, monkeypatch):
    """Training goes on, and what happened meanwhile is in the file afterwards."""
    metrics, log = Metrics(tmp_path / "metrics.jsonl"), Log((tmp_path / "worker.log").open("w"))

    def refused(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as broken:
        broken.setattr(metrics, "_stream", SimpleNamespace(write=refused))
        broken.setattr(log, "_stream", SimpleNamespace(write=refused, flush=refused))
        broken.setattr(os, "utime", refused)
        metrics.phase("training")
        print("a line", file=log, flush=True)
    metrics.phase("validating")
    records = [json.loads(line)["phase"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert records == ["training", "validating"]
