"""What goes wrong in the field: killed, frozen and missing workers, NaN, bad data, two runs at once."""

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import subprocess

import numpy as np
import pytest

from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE, SLOWEST, await_until
from tests.unit.samples import flip_a_bit
from trainer.telemetry import read_records

LONG = ("config=task_cnn", "epochs=100000", "set=train.global_batch=20,train.steps_per_call=2")
ONCE = (*LONG[:2], f"{LONG[2]},recovery.max_restarts=0")
"""Nothing starts again by itself."""


def begin(project: LocalProject, pictures, name: str, *more: str, how=LONG):
    """A run that would go on for ever, under way and watched."""
    playbook = project.start("train", f"run={name}", f"dataset={pictures}", *how, *more)
    await_until(lambda: project.steps(1, name) > 4 or playbook.poll() is not None, 90, f"{name} training")
    assert playbook.poll() is None, playbook.communicate()[0]
    return playbook


def finish(playbook, seconds: float) -> tuple[int, str]:
    output, _ = playbook.communicate(timeout=SLOWEST * seconds)
    return playbook.returncode, output


def test_loss_that_is_no_number_stops_the_run_with_step_and_learning_rate(project, pictures):
    more = "set=train.global_batch=20,optimizer.learning_rate=1e30"
    done = project.play("train", "run=diverging", f"dataset={pictures}", "config=task_cnn", "epochs=3", more, check=False)
    assert done.returncode != 0
    assert "exit code 3" in done.stdout
    assert "the loss became" in done.stdout
    assert "with learning rate 1e+30" in done.stdout
    assert project.summary("diverging")["state"] == "FAILED"


def test_what_a_last_step_makes_of_the_weights_is_looked_at_before_anything_is_saved(project, pictures):
    more = "set=train.global_batch=20,optimizer.learning_rate=1e30,train.steps=1"
    done = project.play("train", "run=ruined", f"dataset={pictures}", "config=task_cnn", more, check=False)
    assert done.returncode != 0
    assert "the validation loss became nan after step 1 with learning rate 1e+30" in done.stdout
    assert project.summary("ruined")["state"] == "FAILED"
    for folder in ("state", "checkpoints"):
        assert not list((project.run("ruined") / folder).glob("*"))


WEIGHTS = """import keras
import tensorflow as tf


@tf.custom_gradient
def unseen(x, place):
    return tf.identity(x), lambda upstream: (upstream, tf.constant(float("-inf")))


@keras.saving.register_keras_serializable()
class Steep(keras.layers.Layer):
    def build(self, shape):
        self.place = self.add_weight(shape=(), initializer="zeros")

    def call(self, x):
        return unseen(x, tf.convert_to_tensor(self.place))


@keras.saving.register_keras_serializable()
class Masked(keras.layers.Layer):
    def build(self, shape):
        self.mask = self.add_weight(shape=shape[1:], initializer=keras.initializers.Constant(float("-inf")), trainable=False)

    def call(self, x):
        return tf.maximum(x, self.mask)


def build(size, classes, steep=True):
    last = Steep() if steep else Masked()
    return keras.Sequential([keras.Input(size), keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(classes), last])
"""


@pytest.mark.parametrize("steep", [True, False])
def test_a_weight_that_became_infinite_ends_the_run_unseen_by_the_loss_and_one_that_always_was_does_not(steep, project, pictures):
    (project.root / "weights.py").write_text(WEIGHTS)
    run, more = f"weights-{steep}".lower(), f"set=train.global_batch=20,train.steps=1,data.image_size=[8,8,3],model.steep={steep}".lower()
    done = project.play("train", f"run={run}", "model=weights.py:build", f"dataset={pictures}", more, check=not steep)
    assert (done.returncode == 0) != steep
    kept = [path.name for folder in ("state", "checkpoints") for path in (project.run(run) / folder).glob("*")]
    if steep:
        assert "a weight became inf after step 1 with learning rate 0.001" in done.stdout
        assert kept == []
    else:
        assert kept == ["step-000000001.npz", "epoch-0001.keras"]


def test_time_limit_ends_the_run_as_cancelled_and_it_can_go_on(project, pictures):
    more = "set=train.global_batch=20,train.time_limit=12"
    done = project.play("train", "run=limited", f"dataset={pictures}", "config=task_cnn", "epochs=100000", more, check=False)
    assert done.returncode != 0
    assert project.summary("limited")["state"] == "CANCELLED"
    assert "train.yml -e run=limited" in done.stdout
    assert list((project.run("limited") / "state").glob("*.npz"))


def test_signal_from_elsewhere_preempts_all_workers_with_the_state_saved(project, pictures):
    playbook = begin(project, pictures, "preempted", how=ONCE)
    os.kill(project.trainer_pid(2, "preempted"), signal.SIGTERM)
    code, output = finish(playbook, 60)
    assert code != 0
    assert "preempted was stopped before its end: PREEMPTED" in output
    assert project.summary("preempted")["state"] == "PREEMPTED"
    assert list((project.run("preempted") / "state").glob("*.npz"))


@pytest.fixture
def broken(pictures, tmp_path):
    """A copy of the pictures with a truncated and an unreadable file."""
    root = tmp_path / "broken"
    shutil.copytree(pictures, root)
    whole = (root / "train" / "cat" / "bild 0.jpg").read_bytes()
    (root / "train" / "cat" / "bild 0.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "test" / "Käse" / "bild 1.png").write_bytes(b"no image")
    return root


def test_bad_images_are_listed_and_nothing_starts_unless_they_are_allowed(project, broken):
    common = (f"dataset={broken}", "config=task_cnn", "quick=true")
    done = project.play("train", "run=bad", *common, check=False)
    assert done.returncode != 0
    assert "2 images can't be read" in done.stdout
    assert "train/cat/bild 0.jpg: Truncated File Read" in done.stdout
    assert "test/Käse/bild 1.png" in done.stdout
    assert "allow_bad_images=true" in done.stdout
    assert not project.node(1, "bad").exists()
    assert not list((project.root / ".lockstep" / "dfs" / "datasets").glob(".part-*"))
    allowed = project.play("train", "run=bad", *common, "allow_bad_images=true")
    assert "left out 2 images" in allowed.stdout


def empty_cat(root):
    for file in (root / "train" / "cat").iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("breaking", "message"),
    [
        (lambda root: shutil.rmtree(root / "test" / "cat"), "only in train/: cat"),
        (empty_cat, "class train/cat is empty"),
    ],
)
def test_bad_dataset_is_refused_before_any_worker_starts(project, pictures, tmp_path, breaking, message):
    root = tmp_path / "copy"
    shutil.copytree(pictures, root)
    breaking(root)
    done = project.play("train", "run=refused", f"dataset={root}", "config=task_cnn", check=False)
    assert done.returncode != 0
    assert message in done.stdout
    assert not project.run("refused").exists()
    assert not project.node(1, "refused").exists()


def test_gpus_that_a_host_does_not_have(project):
    place = project.root / "inventory" / "gpus"
    shutil.copytree(project.root / "inventory" / "local", place)
    hosts = (place / "hosts.yml").read_text()
    (place / "hosts.yml").write_text(hosts.replace("  hosts:", "  vars: {gpus: 1}\n  hosts:"))
    promised = dataclasses.replace(project, inventory="inventory/gpus")
    looked = promised.play("train", "run=no-gpus", "quick=true", check=False)
    assert looked.returncode != 0
    assert "[FAIL] worker1, worker2  GPUs  none (limit: at least 1)." in looked.stdout
    blind = promised.play("train", "run=no-gpus-either", "quick=true", "preflight=false", check=False)
    assert blind.returncode != 0
    assert "error: gpus=1: TensorFlow finds 0 on this host." in blind.stdout
    script = (project.node(2, "no-gpus-either") / "workers" / "worker2" / "run_worker.sh").read_text()
    assert "export CUDA_VISIBLE_DEVICES=1\n" in script
    shutil.rmtree(place)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("epoch=3", "did you mean epochs?"),
        ("workers=6", "workers=6: the inventory has 5"),
        ("run=../escape", "run=../escape: a run name is"),
        ("run=$(reboot)", "a run name is"),
        ("set=train.batchsize=3", "did you mean train.batch_size?"),
        ("--limit=worker1", "--limit worker1: a synchronous cluster waits for every worker"),
    ],
)
def test_bad_input_is_refused_with_the_mend(project, argument, message):
    done = project.play("train", argument, check=False)
    assert done.returncode != 0
    assert message in done.stdout
    assert "changed=1" not in done.stdout


SHORT = ("config=task_cnn", "set=train.global_batch=20,train.steps_per_call=2,data.image_size=[8,8,3],reduction.name=packed")


def newest(folder):
    return sorted((folder / "state").glob("step-*.npz"))[-1]


@EXHAUSTIVE
def test_a_damaged_state_gives_way_to_the_newest_whole_one_and_the_run_ends_as_if_nothing_had_been(project, pictures):
    """The copy here is intact first, then damaged as well: nobody types anything but the command itself."""
    without_copy = SHORT[0], f"{SHORT[1]},checkpoint.copy=none"
    whole = project.play("train", "run=intact", f"dataset={pictures}", *without_copy, "epochs=4")
    assert "intact: SUCCEEDED" in whole.stdout
    project.play("train", "run=bitten", f"dataset={pictures}", *without_copy, "epochs=2")
    node, here = project.node(1, "bitten"), project.run("bitten")
    flip_a_bit(newest(node))
    copy = newest(here).read_bytes()
    project.play("status", "run=bitten")
    assert newest(here).read_bytes() == copy
    resumed = project.play("train", "run=bitten", "epochs=3")
    assert (
        "state of step 16 on worker1 is damaged (its digest differs) and put aside; continuing from step 16 of this machine"
        in resumed.stdout
    )
    assert (node / "damaged" / "state-step-000000016.npz").is_file()
    for folder in (node, here):
        newest(folder).write_bytes(newest(folder).read_bytes()[:-1000])
    resumed = project.play("train", "run=bitten", "epochs=4")
    assert re.search(r"state of step 24 on worker1 is damaged \(.+\) and put aside; continuing from step 16 of worker1", resumed.stdout)
    assert re.search(r"state of step 24 on this machine is damaged", resumed.stdout)
    assert project.summary("bitten")["weights_sha256"] == project.summary("intact")["weights_sha256"]
    assert project.summary("bitten")["exact"] is True


@EXHAUSTIVE
def test_a_state_of_an_older_version_is_continued(project, pictures):
    project.play("train", "run=older", f"dataset={pictures}", *SHORT, "epochs=2")
    for folder in (project.node(1, "older"), project.run("older")):
        for path in (folder / "state").glob("*.npz"):
            with np.load(path) as stored:
                np.savez(path, **{name: stored[name] for name in stored.files})
    project.play("train", "run=older", "epochs=3")
    assert "without a digest, as older versions wrote it" in (project.run("older") / "workers/worker1/worker.log").read_text()
    assert project.summary("older")["restarts"] == 1


@pytest.fixture
def small_disk(project):
    """Mount a file system of the given size in MB under a run on a worker."""
    mounted = []

    def mount(worker, run, size):
        place = project.node(worker, run)
        place.mkdir(parents=True)
        mounting = ["mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", str(place)]
        if os.geteuid() != 0 or subprocess.run(mounting, check=False, capture_output=True).returncode != 0:
            pytest.skip("a small disk needs root")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk):
    handle = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while True:
            os.write(handle, bytes(4096))
    os.close(handle)


def choke(disk):
    """Take all space, that of older states included: a worker would take it for the next."""
    for folder in {path.parent for path in disk.rglob("step-*.npz")}:
        for path in sorted(folder.glob("step-*.npz"))[:-1]:
            path.unlink(missing_ok=True)
    fill(disk)


def warned(project, worker, run):
    path = project.node(worker, run) / "workers" / f"worker{worker}" / "metrics.jsonl"
    return [record["text"] for record in read_records(path) if record["kind"] == "warning"]


ENDLESS = (
    "epochs=100000",
    "set=train.global_batch=20,train.steps_per_call=2,data.image_size=[8,8,3],checkpoint.snapshots=last,checkpoint.copy=none",
)


@pytest.mark.parametrize(("reduction", "worker"), [("packed", 1), pytest.param("powersgd", 2, marks=EXHAUSTIVE)])
def test_a_disk_that_fills_stops_no_training_and_the_end_says_what_is_missing(project, pictures, small_disk, reduction, worker):
    run = f"full-{reduction}"
    disk = small_disk(worker, run, 24)
    common = (
        f"dataset={pictures}",
        "config=task_cnn",
        *ENDLESS[:1],
        f"{ENDLESS[1]},reduction.name={reduction},reduction.min_elements=1000",
    )
    playbook = project.start("train", f"run={run}", *common)
    states = project.node(1, run) / "state"
    await_until(lambda: len(list(states.glob("step-*.npz"))) == 2 or playbook.poll() is not None, 90, "two states")
    assert playbook.poll() is None, playbook.communicate()[0]
    await_until(lambda: choke(disk) or warned(project, worker, run), 60, "the warning")
    before = project.steps(3 - worker, run)
    await_until(lambda: choke(disk) or project.steps(3 - worker, run) > before + 16, 60, "two epochs on a full disk")
    # A state of which a worker can't write its part is there for a moment.
    kept = min(path.name for path in states.glob("step-*.npz"))
    before = project.steps(3 - worker, run)
    await_until(lambda: project.steps(3 - worker, run) > before + 40, 60, "training to go on")
    names = sorted(path.name for path in states.glob("step-*.npz"))
    assert (names[0], len(names) <= 3) == (kept, True)
    (disk / "filler").unlink()
    await_until(lambda: any("the disk takes files again" in text for text in warned(project, worker, run)), 60, "all to be saved again")
    count = len(warned(project, worker, run))
    await_until(lambda: choke(disk) or len(warned(project, worker, run)) > count, 60, "the next warning")
    stopped = project.play("stop", f"run={run}", check=False)
    code, output = finish(playbook, 90)
    assert code != 0
    assert re.search(rf"worker{worker}: .+ (is|has not sent).*: .+: no space left on device .+Training goes on", output), output
    ended = output + stopped.stdout
    assert re.search(r"error: .+ is not saved: .+/step-\d{9}\.npz: no space left on device \([\d.]+ MB needed, [\d.]+ MB free\)", ended), (
        ended
    )
    assert "Traceback" not in ended
    assert "it continues at step" in ended
    assert project.summary(run)["state"] == "FAILED"
    assert not project.sessions(run)
    (disk / "filler").unlink()
    step = int(sorted(states.glob("step-*.npz"))[-1].stem[5:])
    resumed = project.play("train", f"run={run}", f"set=train.steps={step + 10}")
    assert f"{run}: SUCCEEDED" in resumed.stdout
    assert project.summary(run)["exact"] is True


@pytest.mark.parametrize(("policy", "left"), [("best", 1), pytest.param("last", 1, marks=EXHAUSTIVE), pytest.param(2, 2, marks=EXHAUSTIVE)])
def test_snapshots_are_kept_as_asked_and_lie_on_this_machine_once(project, pictures, policy, left):
    run = f"kept-{policy}"
    more = f"{SHORT[1]},checkpoint.snapshots={policy}"
    done = project.play("train", f"run={run}", f"dataset={pictures}", SHORT[0], more, "epochs=3")
    assert f"(checkpoint.snapshots: {policy})" in done.stdout
    here, there = (sorted((folder / "checkpoints").iterdir()) for folder in (project.run(run), project.node(1, run)))
    assert [path.name for path in here] == [path.name for path in there]
    assert len(here) == left
    assert [path.stat().st_ino for path in here] == [path.stat().st_ino for path in there]
    if policy != "best":
        refused = project.play("evaluate", f"run={run}", "epoch=1", check=False)
        names = "2-3" if policy == 2 else "3"
        assert f"no such snapshot; there are: {names} (checkpoint.snapshots={policy} keeps no others)" in refused.stdout
        assert "test" in project.play("evaluate", f"run={run}").stdout
