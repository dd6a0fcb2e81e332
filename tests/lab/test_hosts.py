"""Hosts that go away, before a launch, while they train or are provisioned, and come back; and who watches them meanwhile."""

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.lab.conftest import LONG, NAMES, NODES, PREFIX, WORKER_ROOT, Lab, changed
from tests.lab.test_attacks import USER, python
from tests.project import EXHAUSTIVE, SLOWEST, await_during, await_until

TRIGGERS = (
    "trainer/supervision",
    "trainer/network/peer_watch.py",
    "trainer/network/sockets_all_reduce.py",
    "control/runs",
    "control/remote",
    "roles/worker",
    "roles/recovery",
)
UNSUPERVISED = (*LONG[:2], f"{LONG[2]},recovery.max_restarts=0")

TRY = """
import os, pathlib, subprocess, sys
root, pid = sys.argv[1:]
def opens(path):
    try:
        os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1)
        return True
    except OSError:
        return False
folders = [f"{root}/runs", f"{root}/locks", f"{root}/caches", "/mnt/lockstep/datasets", "/mnt/lockstep/code"]
opened = [path for path in folders if os.path.isdir(path) and opens(path)]
opened += [name for name in ("environ", "maps", "cwd", "fd") if opens(f"/proc/{pid}/{name}")]
sockets = pathlib.Path("/tmp").glob("tmux-*/lockstep")
opened += [f"tmux {path}" for path in sockets if subprocess.run(["tmux", "-S", path, "list-sessions"], capture_output=True).returncode == 0]
try:
    os.kill(int(pid), 0)
    opened.append("kill")
except OSError:
    pass
for path in (f"{root}/locks/12345.json", f"{root}/runs/planted", "/mnt/lockstep/code/planted", "/mnt/lockstep/planted"):
    try:
        open(path, "a").close()
        opened.append(f"write {path}")
    except OSError:
        pass
print(opened)
"""


def ended(playbook: subprocess.Popen[str]) -> str:
    """What a command that was started has printed when it has ended, asked to if need be."""
    if playbook.poll() is None:
        playbook.send_signal(signal.SIGINT)
    return playbook.communicate(timeout=60 * SLOWEST)[0]


# --- one training, which is watched, and goes on after one of its hosts has restarted


@pytest.fixture(scope="module")
def watched(cluster: Lab) -> Iterator[subprocess.Popen[str]]:
    """The command that watches the run `watched` of two hosts, whose workers start again when one is lost."""
    playbook = cluster.start("train", "run=watched", "workers=2", *LONG[:2], f"{LONG[2]},recovery.max_restarts=3")
    cluster.await_steps(2, "watched", 5, playbook)
    yield playbook
    ended(playbook)


def test_status_names_every_host_that_trains(cluster, watched):
    status = cluster.play("status", "run=watched").stdout
    assert all(name in status for name in NAMES[:2])


def test_an_ordinary_user_sees_neither_run_nor_secret(cluster, watched):
    """Neither files, nor the shared folder, nor tmux, nor what /proc has of a worker; and what everybody sees there holds no secret."""
    with cluster.user(1, USER):
        pid = str(json.loads(cluster.own(1, "watched", "supervisor.json"))["pids"]["worker"])
        assert python(cluster, 1, TRY, WORKER_ROOT, pid) == "[]\n"
        assert python(cluster, 1, TRY, WORKER_ROOT, pid, user="lockstep").count("write") >= 3, "the attempts are real ones"
        planted = [f"{WORKER_ROOT}/runs/planted", "/mnt/lockstep/code/planted", "/mnt/lockstep/planted"]
        cluster.on(1, shlex.join(["rm", "-rf", *planted]))
        secret = cluster.own(1, "watched", "secret").strip()
        assert len(bytes.fromhex(secret)) == 32
        shown = cluster.on(1, f"cd /; runuser -u {USER} -- ps -ww -eo args")
        assert "--run" in shown
        assert secret not in shown


def test_a_restarted_host_trains_on(cluster, watched):
    """By itself: its shared folder and its firewall are back, the workers start again, and nobody types anything."""
    cluster.container("restart", "-t", "30", f"{PREFIX}-node2")
    await_until(lambda: "glusterfs" in cluster.on(2, "findmnt -n -o FSTYPE /mnt/lockstep", check=False), 90, "mounted again")
    await_until(lambda: "trainer-" in cluster.on(2, "ls /mnt/lockstep/code", check=False), 90, "read again")
    assert "table inet lockstep" in cluster.on(2, "nft list ruleset")
    await_until(lambda: "restart 1 of this launch" in cluster.own(1, "watched", "worker.log"), 240, "the restart")
    cluster.await_steps(1, "watched", cluster.steps(1, "watched") + 5, watched)
    cluster.play("stop", "run=watched")
    watched.communicate(timeout=60 * SLOWEST)
    summary = cluster.summary("watched")
    assert (summary["state"], summary["restarts"]) == ("CANCELLED", 1)


# --- a host that is unplugged


@EXHAUSTIVE("control/doctor", "roles/doctor", "doctor.yml")
def test_the_doctor_judges_the_others_without_the_first(cluster):
    with cluster.unplugged(1):
        done = cluster.play("doctor", check=False)
        assert done.returncode != 0
        assert not any(cluster.sessions(node) for node in range(1, NODES + 1))
    assert re.search(r"\[FAIL\] node1 +ssh +.*it is down", done.stdout), done.stdout
    assert done.stdout.count("[FAIL]") == 1, done.stdout
    assert all(re.search(rf"\[OK\] +{name} +ssh +reachable", done.stdout) for name in NAMES[1:]), done.stdout


def test_an_unplugged_host_ends_the_run_which_continues(cluster):
    """It is named, with the command that continues the run; that command does once the host is back."""
    playbook = cluster.start("train", "run=unplugged", "workers=2", *UNSUPERVISED)
    try:
        cluster.await_steps(1, "unplugged", 21, playbook)
        with cluster.unplugged(2):
            output, _ = playbook.communicate(timeout=240 * SLOWEST)
    finally:
        ended(playbook)
    assert playbook.returncode != 0
    assert "First failure: node2 (rank 1)" in output, output
    assert "can't be reached" in output, output
    assert "train.yml -e run=unplugged" in output, output
    assert cluster.summary("unplugged")["state"] == "FAILED"
    cluster.play("stop", "run=unplugged")
    done = cluster.play("train", "run=unplugged", "workers=2", f"epochs={cluster.summary('unplugged')['epochs_done'] + 1}")
    assert "unplugged: SUCCEEDED" in done.stdout, done.stdout


@EXHAUSTIVE
@pytest.mark.parametrize("transport", ["direct", "tensorflow"])
@pytest.mark.parametrize("node", [1, 3])
def test_the_others_of_an_unplugged_host_end(cluster, node, transport):
    """Whichever host it is, and however gradients travel."""
    run = f"cut{node}-{transport}"
    others = [number for number in range(1, NODES + 1) if number != node]
    cluster.play("train", f"run={run}", *LONG[:2], f"{LONG[2]},reduction.transport={transport},recovery.max_restarts=0", "detach=true")
    cluster.await_steps(node, run, 21)
    with cluster.unplugged(node):
        await_until(lambda: all(cluster.own(number, run, "exit.json") for number in others), 120, "the end of the others")
        assert {json.loads(cluster.own(number, run, "exit.json"))["exit_code"] for number in others} == {75}
    cluster.play("stop", f"run={run}")


@EXHAUSTIVE("control/provision", "roles/python_env", "roles/host", "provision.yml", "playbooks/stages/provision.yml")
def test_a_host_unplugged_while_provisioned_is_named(cluster):
    """The same command finishes what it began, once the host is back."""
    cluster.on(2, f"rm -rf {WORKER_ROOT}/venv")
    playbook = cluster.start("provision")
    venv = f"ls -d {WORKER_ROOT}/venv {WORKER_ROOT}/.lockstep-install-* 2>/dev/null | wc -l"
    await_during(playbook, lambda: cluster.on(2, venv, check=False).strip() not in ("", "0"), 120, "installing")
    with cluster.unplugged(2):
        output, _ = playbook.communicate(timeout=300 * SLOWEST)
        assert playbook.returncode != 0
        assert re.search("node2: .*can't be reached|node2: it is down", output), output
    # The node may have gone on by itself: what it had begun needs no network.
    cluster.play("provision", timeout=600)
    assert changed(cluster.play("provision").stdout) == 0
    assert cluster.on(2, f"{WORKER_ROOT}/venv/bin/python -c 'import tensorflow' && echo fine", check=False).strip() == "fine"
