"""Debian's Slurm on two nodes and more: the same trainer and run directory, hosts and ranks from the allocation."""

import json

from tests.lab.conftest import NAMES, NODES, changed
from tests.project import EXHAUSTIVE, await_until

TRIGGERS = ("roles/slurm", "roles/slurm_lab", "playbooks/slurm.yml", "playbooks/lab_slurm.yml", "trainer/launch/slurm.py")
pytestmark = EXHAUSTIVE
SHORT = ("config=lecture_cnn", "workers=2", "set=train.steps=40,train.steps_per_epoch=20,data.limit_train=6400,reduction.name=packed")


def test_slurm_is_put_on_the_labs_nodes_once(cluster):
    assert changed(cluster.play("playbooks/lab_slurm", timeout=600).stdout) > 0
    assert changed(cluster.play("playbooks/lab_slurm").stdout) == 0
    assert cluster.on(1, "sinfo --noheader --format '%D %T'").split() == [str(NODES), "idle"]


def test_a_job_trains_what_train_yml_trains(cluster):
    """Two workers, in steps and epochs; the same weights on both, and as started by tmux."""
    done = cluster.play("playbooks/slurm", *SHORT, "run=slurm-job", "time=10:00", timeout=600)
    assert "slurm-job: SUCCEEDED" in done.stdout, done.stdout
    run, summary = cluster.run("slurm-job"), cluster.summary("slurm-job")
    assert (summary["workers"], summary["steps"], len(set(summary["weights_sha256_by_rank"]))) == (2, 40, 1)
    ends = {path.parent.name: json.loads(path.read_text()) for path in (run / "workers").glob("*/exit.json")}
    assert {end["rank"] for end in ends.values()} == {0, 1}
    assert all(name in NAMES and end["exit_code"] == 0 for name, end in ends.items())
    assert len(list((run / "checkpoints").glob("*.keras"))) == 2
    cluster.play("train", *SHORT, "run=no-slurm", timeout=600)
    assert cluster.summary("no-slurm")["weights_sha256"] == summary["weights_sha256"]
    assert "Nothing to do" in cluster.play("playbooks/slurm", *SHORT, "run=slurm-job").stdout


def test_a_job_that_ended_while_nobody_looked_is_fetched_and_train_yml_may_go_on_with_it(cluster):
    first = "set=train.steps=20,train.steps_per_epoch=20,data.limit_train=6400,reduction.name=packed"
    job = (*SHORT[:2], first, "run=slurm-later")
    assert "slurm-later is job" in cluster.play("playbooks/slurm", *job, "detach=true").stdout
    number = json.loads((cluster.run("slurm-later") / "cluster.json").read_text())["slurm"]["job"]
    await_until(lambda: not cluster.on(1, "squeue --noheader").strip(), 300, "the job's end")
    fetched = cluster.play("playbooks/slurm", *job)
    assert "slurm-later: SUCCEEDED" in fetched.stdout, fetched.stdout
    assert changed(fetched.stdout) == 0
    record = json.loads((cluster.run("slurm-later") / "cluster.json").read_text())
    assert record["slurm"] == {"job": number, "folder": "/mnt/lockstep/slurm/slurm-later", "told": True}
    cluster.play("train", *SHORT, "run=slurm-later", timeout=600)
    went_on = json.loads((cluster.run("slurm-later") / "cluster.json").read_text())
    assert (went_on["id"], went_on["slurm"]) == (record["id"], {"folder": "/mnt/lockstep/slurm/slurm-later"})
    assert all(host["threads"] >= 1 for host in went_on["hosts"])
    assert cluster.summary("slurm-later")["weights_sha256"] == cluster.summary("slurm-job")["weights_sha256"]
    refused = cluster.play("playbooks/slurm", *SHORT[:2], SHORT[2].replace("steps=40", "steps=60"), "run=slurm-later", check=False)
    assert "run=slurm-later: it was last trained by train.yml" in refused.stdout


def test_a_job_that_cant_begin_says_why(cluster):
    listens = 'import socket, time; s = socket.socket(); s.bind(("", 12399)); s.listen(); time.sleep(300)'
    held = cluster.on(2, f"python3 -c '{listens}' >/dev/null 2>&1 & echo $!").strip()
    try:
        done = cluster.play("playbooks/slurm", *SHORT, "run=slurm-port", "slurm_port=12399", check=False, timeout=600)
    finally:
        cluster.on(2, f"kill {held}")
    assert done.returncode != 0
    # Slurm's job is another user's: of the program that listens it sees the user.
    assert "error: port 12399: Address already in use; a process of user root has it on this node" in done.stdout, done.stdout


def test_what_jobs_need_to_go_on_is_not_removed_unasked(cluster):
    refused = cluster.play("provision", "state=absent", check=False)
    kept = [run for run in ("slurm-job", "slurm-later", "slurm-port") if cluster.run(run).exists()]
    assert "slurm-job" in kept
    assert f"holds in slurm/ what runs under Slurm need to go on ({', '.join(kept)})" in refused.stdout, refused.stdout
    for run in kept:
        cluster.play("playbooks/delete_run", f"run={run}")
        assert not cluster.run(run).exists()
    assert cluster.on(1, "find /mnt/lockstep/slurm -not -type d") == ""


def test_slurm_is_taken_away(cluster):
    cluster.play("playbooks/lab_slurm", "state=absent", timeout=300)
    assert cluster.on(1, "command -v sinfo; ls /etc/slurm/slurm.conf 2>/dev/null", check=False) == ""
    assert changed(cluster.play("playbooks/lab_slurm", "state=absent").stdout) == 0
