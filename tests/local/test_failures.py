"""What goes wrong in the field: killed, frozen and missing workers, NaN, bad data, two runs at once."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from tests.local.conftest import LocalProject
from tests.project import await_until

LONG = ("config=task_cnn", "epochs=100000", "set=train.global_batch=20,train.steps_per_call=2")


def begin(project: LocalProject, pictures, name: str, *more: str):
    """A run that would go on for ever, under way and watched."""
    playbook = project.start("train", f"run={name}", f"dataset={pictures}", *LONG, *more)
    await_until(lambda: project.steps(1, name) > 4 or playbook.poll() is not None, 90, f"{name} training")
    assert playbook.poll() is None, playbook.communicate()[0]
    return playbook


def finish(playbook, seconds: float) -> tuple[int, str]:
    output, _ = playbook.communicate(timeout=seconds)
    return playbook.returncode, output


def sessions() -> str:
    return subprocess.run(["tmux", "-L", "lockstep", "ls"], capture_output=True, text=True, check=False).stdout


def test_killed_worker_ends_the_others_within_30_s_and_is_named_as_the_cause(project, pictures):
    playbook = begin(project, pictures, "killed")
    begun = time.monotonic()
    os.kill(project.trainer_pid(2, "killed"), signal.SIGKILL)
    code, output = finish(playbook, 90)
    assert code != 0
    exits = [json.loads((project.run("killed") / "workers" / f"worker{number}" / "exit.json").read_text()) for number in (1, 2)]
    # A worker that has not noticed within 25 s is ended (143).
    assert exits[0]["exit_code"] in (75, 143)
    assert exits[1]["exit_code"] == 137
    assert abs(exits[0]["ended_at"] - exits[1]["ended_at"]) < 30
    assert time.monotonic() - begun < 60
    assert "First failure: worker2 (rank 1), exit code 137 (killed by SIGKILL)" in output
    assert re.search(r"worker1 \(rank 0\): (exit code 75|ended)", output), output
    assert "ansible-playbook train.yml -e run=killed" in output
    assert project.summary("killed")["state"] == "FAILED"
    assert project.summary("killed")["failure"]["host"] == "worker2"
    assert "killed-w" not in sessions()


def test_status_keeps_the_recorded_failure(project):
    project.play("status", "run=killed")
    assert project.summary("killed")["state"] == "FAILED"
    assert project.summary("killed")["failure"]["host"] == "worker2"


def test_killed_run_continues_with_the_same_name(project, pictures):
    done = project.play("train", "run=killed", "set=train.steps=60", "detach=true", check=False)
    assert done.returncode == 0, done.stdout
    await_until(lambda: "killed-w" not in sessions(), 60, "the end of 60 steps")


def test_frozen_worker_ends_the_run(project, pictures):
    playbook = begin(project, pictures, "frozen", "worker_silence=20")
    pid = project.trainer_pid(2, "frozen")
    os.kill(pid, signal.SIGSTOP)
    code, output = finish(playbook, 100)
    assert code != 0
    assert "First failure: worker2 (rank 1), silent" in output
    assert "no heartbeat for" in output
    assert project.summary("frozen")["state"] == "FAILED"
    assert "frozen-w" not in sessions()
    await_until(lambda: not os.path.exists(f"/proc/{pid}"), 10, "the frozen process to be ended")


def test_a_run_goes_on_at_once_although_one_worker_still_waits_for_another_that_ended(project, pictures):
    project.play("train", "run=widowed", f"dataset={pictures}", *LONG, "detach=true")
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
    assert "second-w" not in sessions()
    assert "left: RUNNING" in project.play("status", "run=left").stdout


def test_same_name_again_watches_the_run_and_stop_ends_only_it(project, pictures):
    other = ["tmux", "-L", "lockstep", "new-session", "-d", "-s", "left-w0-of-somebody-else", "sleep", "600"]
    subprocess.run(other, check=True)
    try:
        watching = project.play("train", "run=left", "detach=true")
        assert "left is under way" in watching.stdout
        stopped = project.play("stop", "run=left")
        assert "left: CANCELLED" in stopped.stdout
        assert "left-w0-of-somebody-else" in sessions()
        assert "left-w1" not in sessions()
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
    playbook = project.start("train", "run=late", f"dataset={pictures}", *LONG, "worker_start_deadline=8")
    folder = project.node(2, "late") / "workers" / "worker2"
    await_until((folder / "metrics.jsonl").is_file, 60, "worker2's start")
    os.kill(project.trainer_pid(2, "late"), signal.SIGSTOP)
    code, output = finish(playbook, 120)
    assert code != 0
    assert project.summary("late")["state"] == "FAILED"
    assert "late-w" not in sessions()
    assert "First failure: " in output


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
    playbook = begin(project, pictures, "preempted")
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
    assert "busy-w" not in sessions()


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


def no_test(root):
    shutil.rmtree(root / "test")


def empty_cat(root):
    for file in (root / "train" / "cat").iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("breaking", "message"),
    [
        (no_test, "there is no test/ in it"),
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
