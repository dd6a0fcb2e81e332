"""What goes wrong in the field: killed, frozen and missing workers, NaN, bad data, two runs at once."""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

from tests.local_project import LocalProject, all_sessions
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


def test_killed_worker_ends_the_others_within_30_s_and_is_named_as_the_cause(project, pictures):
    playbook = begin(project, pictures, "killed", how=ONCE)
    os.kill(project.trainer_pid(2, "killed"), signal.SIGKILL)
    code, output = finish(playbook, 90)
    assert code != 0
    exits = [json.loads((project.run("killed") / "workers" / f"worker{number}" / "exit.json").read_text()) for number in (1, 2)]
    # A worker that has not noticed within 25 s is ended (143).
    assert exits[0]["exit_code"] in (75, 143)
    assert exits[1]["exit_code"] == 137
    assert abs(exits[0]["ended_at"] - exits[1]["ended_at"]) < 30
    # Eight steps are an epoch: a moment later it validates or saves.
    killed = r"First failure: worker2 \(rank 1\), exit code 137 \(killed by SIGKILL while (training|validating|saving), after step \d"
    assert re.search(killed, output), output
    assert re.search(r"worker1 \(rank 0\): (exit code 75|ended)", output), output
    assert "ansible-playbook train.yml -e run=killed" in output
    assert project.summary("killed")["state"] == "FAILED"
    assert project.summary("killed")["failure"]["host"] == "worker2"
    assert not project.sessions("killed")


def test_status_keeps_the_recorded_failure(project):
    project.play("status", "run=killed")
    assert project.summary("killed")["state"] == "FAILED"
    assert project.summary("killed")["failure"]["host"] == "worker2"


def test_killed_run_continues_with_the_same_name(project, pictures):
    done = project.play("train", "run=killed", "set=train.steps=60", "detach=true", check=False)
    assert done.returncode == 0, done.stdout
    await_until(lambda: not project.sessions("killed"), 60, "the end of 60 steps")


def test_frozen_worker_ends_the_run(project, pictures):
    playbook = begin(project, pictures, "frozen", "worker_silence=20", how=ONCE)
    pid = project.trainer_pid(2, "frozen")
    os.kill(pid, signal.SIGSTOP)
    code, output = finish(playbook, 100)
    assert code != 0
    assert "First failure: worker2 (rank 1), silent" in output
    assert "no heartbeat for" in output
    assert project.summary("frozen")["state"] == "FAILED"
    assert not project.sessions("frozen")
    await_until(lambda: not os.path.exists(f"/proc/{pid}"), 10, "the frozen process to be ended")


@EXHAUSTIVE
def test_a_run_goes_on_at_once_although_one_worker_still_waits_for_another_that_ended(project, pictures):
    project.play("train", "run=widowed", f"dataset={pictures}", *ONCE, "detach=true")
    waits, ends = project.trainer_pid(1, "widowed"), project.trainer_pid(2, "widowed")
    os.kill(waits, signal.SIGSTOP)
    os.kill(ends, signal.SIGKILL)
    await_until((project.node(2, "widowed") / "workers" / "worker2" / "exit.json").is_file, 20, "the end of worker2")
    looked = project.play("train", "run=widowed", "detach=true", "--check")
    assert "worker2 ended before the others: would end worker1 of the earlier launch; only then hosts can be looked at" in looked.stdout
    assert os.path.exists(f"/proc/{waits}")
    done = project.play("train", "run=widowed", "detach=true")
    assert "worker2 ended before the others: ending worker1 of the earlier launch" in done.stdout
    assert not os.path.exists(f"/proc/{waits}")
    assert "widowed: RUNNING" in project.play("status", "run=widowed").stdout
    project.play("stop", "run=widowed")


def test_ctrl_c_leaves_training_running_and_says_how_to_go_on(project, pictures):
    playbook = begin(project, pictures, "left")
    os.killpg(playbook.pid, signal.SIGINT)
    code, output = finish(playbook, 30)
    assert code != 0
    assert "Training goes on: left" in output
    for command in ("train.yml -e run=left", "status.yml -e run=left", "stop.yml -e run=left"):
        assert command in output
    steps = project.steps(1, "left")
    await_until(lambda: project.steps(1, "left") > steps, 20, "training to go on")
    status = project.play("status", "run=left")
    assert "left: RUNNING" in status.stdout


def test_second_run_is_refused_with_the_first_ones_name(project, pictures):
    done = project.play("train", "run=second", f"dataset={pictures}", *LONG, check=False)
    assert done.returncode != 0
    assert re.search(rf"\[FAIL\] worker1 +port +run left is training on {project.ports[0]}", done.stdout), done.stdout
    assert "ansible-playbook stop.yml -e run=left" in done.stdout
    assert not project.sessions("second")
    assert "left: RUNNING" in project.play("status", "run=left").stdout


def test_same_name_again_watches_the_run_and_stop_ends_only_it(project, pictures):
    other = ["tmux", "-L", "lockstep", "new-session", "-d", "-s", "left-w0-of-somebody-else", "sleep", "600"]
    subprocess.run(other, check=True)
    try:
        watching = project.play("train", "run=left", "detach=true")
        assert "left is under way" in watching.stdout
        stopped = project.play("stop", "run=left")
        assert "left: CANCELLED" in stopped.stdout
        assert "left-w0-of-somebody-else" in all_sessions()
        assert not project.sessions("left")
        again = project.play("stop", "run=left")
        assert "left was not running" in again.stdout
        assert "changed=0" in again.stdout
    finally:
        subprocess.run(["tmux", "-L", "lockstep", "kill-session", "-t", "=left-w0-of-somebody-else"], check=False)


def test_stale_claim_of_a_run_that_is_gone_is_cleared(project, pictures):
    lock = project.root / ".lockstep" / "worker1" / "locks" / f"{project.ports[0]}.json"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.write_text(json.dumps({"run": "ghost", "session": "ghost-w0", "at": time.time() - 3600}))
    done = project.play("train", "run=after-ghost", f"dataset={pictures}", "config=task_cnn", "quick=true")
    assert "after-ghost: SUCCEEDED" in done.stdout
    assert not lock.exists()


def test_worker_that_never_joins_is_noticed_at_the_start_deadline(project, pictures):
    playbook = project.start("train", "run=late", f"dataset={pictures}", *ONCE, "worker_start_deadline=8")
    folder = project.node(2, "late") / "workers" / "worker2"
    await_until((folder / "metrics.jsonl").is_file, 60, "worker2's start")
    os.kill(project.trainer_pid(2, "late"), signal.SIGSTOP)
    code, output = finish(playbook, 120)
    assert code != 0
    assert project.summary("late")["state"] == "FAILED"
    assert not project.sessions("late")
    assert "First failure: " in output


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


def test_port_in_use_is_refused(project, pictures):
    import socket

    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("", project.ports[1]))
        taken.listen()
        done = project.play("train", "run=busy", f"dataset={pictures}", "config=task_cnn", "quick=true", check=False)
    assert done.returncode != 0
    assert re.search(rf"\[FAIL\] worker2 +port +{project.ports[1]} is held by", done.stdout), done.stdout
    assert not project.sessions("busy")


CRASHING = """import os
import signal

import keras
import tensorflow as tf


def crash(x):
    if os.environ.get("TF_ENABLE_ONEDNN_OPTS") != "0":
        os.kill(os.getpid(), signal.SIGSEGV)
    return x


@keras.saving.register_keras_serializable()
class Native(keras.layers.Layer):
    def call(self, x):
        with tf.control_dependencies([tf.numpy_function(crash, [tf.constant(0.0)], tf.float32)]):
            return tf.identity(x)


def build(size, classes):
    layers = [keras.layers.Rescaling(1 / 255), Native(), keras.layers.Flatten(), keras.layers.Dense(classes)]
    return keras.Sequential([keras.Input(size), *layers])
"""


@EXHAUSTIVE
def test_a_worker_that_crashes_twice_is_not_continued_as_it_was(project, pictures):
    """A model whose native code dies by SIGSEGV, as oneDNN does with some layers; the command that is offered in the end works."""
    (project.root / "crashing.py").write_text(CRASHING)
    more = (
        "model=crashing.py:build",
        f"dataset={pictures}",
        "set=train.global_batch=20,train.steps=3,data.image_size=[8,8,3],recovery.max_restarts=0",
    )
    option = "set=train.environment.TF_ENABLE_ONEDNN_OPTS=0"
    for again, given in ((False, more), (True, ())):
        done = project.play("train", "run=crashing", *given, check=False)
        assert done.returncode != 0
        assert re.search(r"First failure: worker[12] \(rank [01]\), exit code 139 \(killed by SIGSEGV while tracing\)", done.stdout), (
            done.stdout
        )
        assert f"Fix: train without it: -e {option}, or worker_environment: {{TF_ENABLE_ONEDNN_OPTS: 0}} in the inventory" in done.stdout
        assert ("The previous launch ended the same way" in done.stdout) == again
        assert ("continue where it stopped" in done.stdout) == (not again)
        assert f"continue without oneDNN  ansible-playbook train.yml -e run=crashing -e {option}" in re.sub(" {3,}", "  ", done.stdout)
        failure = project.summary("crashing")["failure"]
        assert (failure["phase"], failure["step"], failure["exit_code"], failure["again"]) == ("tracing", 0, 139, again)
    done = project.play("train", "run=crashing", option)
    assert "crashing: SUCCEEDED" in done.stdout
    assert "export TF_ENABLE_ONEDNN_OPTS=0\n" in (project.node(2, "crashing") / "workers" / "worker2" / "run_worker.sh").read_text()
    assert "failure" not in project.summary("crashing")


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
