"""Queued runs on SSH hosts: they end by themselves, whatever becomes of the command and of a host."""

import re
import signal

from tests.lab.conftest import NODES, PREFIX, Lab
from tests.project import EXHAUSTIVE, SLOWEST, await_until

TRIGGERS = (
    "control/runs/launch/waiting_runs.py",
    "control/runs/hosts/free_ports.py",
    "trainer/supervision",
    "roles/recovery",
    "roles/worker",
)
pytestmark = EXHAUSTIVE
TRAINING = ("config=task_cnn", "epochs=3")
LONG = ("config=task_cnn", "epochs=40")
SETTINGS = "train.steps_per_epoch=8,train.steps_per_call=2,telemetry.profile_every=0,checkpoint.snapshots=best"
RUNS = ("queued-1", "queued-2", "queued-3")


def test_three_queued_runs_end_though_the_command_is_killed_and_a_host_restarts(cluster: Lab):
    more = f"set={SETTINGS}"
    assert "queued-1 is" in cluster.play("train", "run=queued-1", "queue=true", *LONG, more).stdout
    watching = cluster.start("train", "run=queued-2", "queue=true", "detach=false", *TRAINING, more)
    await_until(lambda: "behind run queued-1" in cluster.own(1, RUNS[1], "worker.log"), 120, "it waits", every=1)
    watching.send_signal(signal.SIGKILL)
    watching.communicate(timeout=60 * SLOWEST)
    third = cluster.play("train", "run=queued-3", "queue=true", *TRAINING, more).stdout
    assert "queued-3 is queued: behind run queued-2, which was queued before" in third
    cluster.container("restart", "-t", "10", f"{PREFIX}-node4")
    listed = cluster.play("status").stdout
    states = dict(re.findall(r"^  (queued-[123]) +(\S+(?: \(\d\))?)", listed, re.MULTILINE))
    assert states["queued-3"] == "QUEUED (2)", listed
    for run in RUNS:
        await_until(lambda run=run: all(cluster.own(node, run, "exit.json") for node in range(1, NODES + 1)), 400, f"{run} ends", every=2)
    listed = cluster.play("status").stdout
    assert len(re.findall(r"^  queued-[123] +ended, not collected", listed, re.MULTILINE)) >= 2, listed
    for run in RUNS:
        cluster.play("train", f"run={run}")
        summary = cluster.summary(run)
        assert (summary["state"], summary["steps"]) == ("SUCCEEDED", 320 if run == RUNS[0] else 24)
    assert cluster.summary(RUNS[1])["weights_sha256"] == cluster.summary(RUNS[2])["weights_sha256"]
    for node in range(1, NODES + 1):
        assert not cluster.on(node, "ls /home/lockstep/lockstep/queue")
