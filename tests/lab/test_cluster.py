"""From bare hosts to a trained model over SSH, and what happens when something is missing on the way."""

import json
import re
import subprocess

from control.campaign import timings
from control.sweep.settings import trial_settings
from tests.lab.conftest import NAMES, NODES, PREFIX, SHORT, SIZE, Lab, changed, recap
from tests.project import EXHAUSTIVE

# --- the way from nothing to a trained model


def test_the_lab_is_made_once(lab):
    assert changed(lab.up(*SIZE).stdout) == 0


def test_a_second_provision_changes_nothing(cluster):
    done = cluster.play("provision")
    assert set(recap(done.stdout)) == set(NAMES)
    assert changed(done.stdout) == 0


@EXHAUSTIVE("control/doctor", "roles/doctor", "doctor.yml", "playbooks/stages/steptime.yml")
def test_the_doctor_finds_nothing_wrong_and_trains_a_few_steps(cluster):
    before = set(cluster.on(1, "ls /home/lockstep/lockstep").split())
    done = cluster.play("doctor", timeout=480)
    assert "[FAIL]" not in done.stdout, done.stdout
    assert re.search(rf"\[OK\] training: (40|2) steps on {NODES} workers", done.stdout), done.stdout
    actual = json.loads((cluster.root / ".lockstep" / "doctor.json").read_text())
    assert actual["ok"] is True
    assert {check["host"] for check in actual["checks"]} >= set(NAMES)
    assert len(actual["prediction"]) == NODES
    pairs = {(here, there) for here, one in actual["network"].items() for there, pair in one["pairs"].items() if pair["mbit_s"] > 0}
    assert len(pairs) == NODES * (NODES - 1)
    assert set(cluster.on(1, "ls /home/lockstep/lockstep").split()) == before | {"caches", "locks", "venv"}


def test_hosts_train_the_same_weights(cluster, first):
    summary = cluster.summary("first")
    assert len(set(summary["weights_sha256_by_rank"])) == 1
    assert len(summary["weights_sha256_by_rank"]) == NODES
    assert {path.name for path in (cluster.run("first") / "workers").iterdir()} == set(NAMES)
    hosts = json.loads((cluster.run("first") / "cluster.json").read_text())["hosts"]
    assert [host["tf_config"]["cluster"]["worker"][host["rank"]] for host in hosts] == [
        f"{cluster.address(node)}:12345" for node in range(1, NODES + 1)
    ]


def test_the_chief_evaluates(cluster, first):
    shown = cluster.play("evaluate", "run=first", "epoch=best").stdout
    assert "first on its test images" in shown, shown
    assert "-i inventory/lab evaluate.yml -e run=first" in shown, shown


@EXHAUSTIVE("control/datasets", "control/remote", "roles/distribute", "roles/worker")
def test_a_second_run_sends_less_than_a_megabyte(cluster, first):
    """Without PowerSGD's memory, 11 MB per worker and state: acknowledging what is collected counts as sent, too."""
    before = cluster.sent()
    cluster.play("train", "run=second", *SHORT)
    sent = cluster.sent() - before
    assert 10_000 < sent < 1_000_000, sent


@EXHAUSTIVE("control/datasets", "control/remote", "roles/distribute")
def test_data_and_code_are_sent_once_for_all_hosts(cluster):
    """The dataset is removed from the shared folder; sending it anew costs its size, not five times that."""
    folder = cluster.on(1, "ls -d /mnt/lockstep/datasets/*").strip()
    size = int(cluster.on(1, f"du -sb {folder}").split()[0])
    cluster.on(1, f"rm -rf {folder}")
    before = cluster.sent()
    cluster.play("train", "run=again", *SHORT)
    assert size < cluster.sent() - before < 1.2 * size + 1_000_000
    assert cluster.on(5, f"ls {folder}/manifest.json").strip()


@EXHAUSTIVE("control/sweep", "sweep.yml", "playbooks/stages/trial.yml", "playbooks/stages/trials.yml")
def test_a_sweep_over_ssh_leaves_nothing_on_the_hosts(cluster):
    shown = cluster.play("sweep", "workers=2,5", "repeats=1", "epochs=1", "set=data.limit_train=6400", "sweep=pi", timeout=400).stdout
    rows = timings.read(cluster.root / "sweeps" / "pi" / "timings.csv")
    assert sorted((row.workers, row.state) for row in rows) == [(2, "SUCCEEDED"), (5, "SUCCEEDED")], shown
    assert all(row.seconds_end_to_end > row.seconds_training > 0 for row in rows)
    assert (cluster.root / "sweeps" / "pi" / "analysis.md").is_file()
    assert left_of_trials(cluster) == ""


def left_of_trials(lab: Lab) -> str:
    """Folders and claims of trials on all hosts."""
    command = "cd /home/lockstep/lockstep; ls -A trials; cat locks/*.json 2>/dev/null | grep trials"
    return "".join(lab.on(node, command, check=False) for node in range(1, NODES + 1))


@EXHAUSTIVE("control/sweep", "sweep.yml", "playbooks/stages/trial.yml", "playbooks/stages/trials.yml")
def test_two_settings_are_tried_side_by_side_on_disjoint_ssh_hosts(cluster):
    given = ("vary=optimizer.learning_rate=0.01,0.02", "workers=2", "epochs=1", "set=data.limit_train=6400", "sweep=rates")
    shown = cluster.play("sweep", *given, timeout=400).stdout
    folder = cluster.root / "sweeps" / "rates"
    rows = trial_settings.STORE.read(folder / trial_settings.FILE)
    assert [row.state for row in rows] == ["SUCCEEDED"] * 2, shown
    assert sorted(row.hosts for row in rows) == ["node1 node2", "node3 node4"]
    spans = []
    for row in rows:
        first = row.hosts.split()[0]
        lines = (folder / "trials" / row.run / "workers" / first / "metrics.jsonl").read_text().splitlines()
        spans.append((json.loads(lines[0])["t"], json.loads(lines[-1])["t"]))
    assert max(begin for begin, _ in spans) < min(end for _, end in spans), f"one after the other: {spans}"
    assert "The best of them is learning_rate=0.0" in shown, shown
    assert left_of_trials(cluster) == ""


# --- who may reach the worker port


def connects(lab: Lab, container: str, address: str) -> bool:
    code = f"import socket; socket.create_connection(('{address}', 12345), 3)"
    try:
        lab.container("exec", container, "python3", "-c", code)
    except subprocess.CalledProcessError:
        return False
    return True


def test_a_stranger_can_not_reach_the_worker_port_and_members_can(cluster):
    with cluster.listening(1, 12345), cluster.stranger() as stranger:
        assert connects(cluster, f"{PREFIX}-node2", cluster.address(1))
        assert not connects(cluster, stranger, cluster.address(1))
