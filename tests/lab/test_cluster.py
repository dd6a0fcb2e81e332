"""From bare hosts to a trained model over SSH, and what happens when something is missing on the way."""

import json
import re
import signal
import time

import pytest

from control.sweep import settings, timings
from tests.lab.conftest import NODES, PREFIX, Lab
from tests.project import EXHAUSTIVE, SLOWEST, await_until

SHORT = ("config=lecture_cnn", "epochs=2", "set=train.steps_per_epoch=20,data.limit_train=6400")
LONG = ("config=lecture_cnn", "epochs=200", "set=train.steps_per_epoch=20,data.limit_train=6400")
NAMES = [f"node{number}" for number in range(1, NODES + 1)]


def recap(output: str) -> dict[str, dict[str, int]]:
    """Ansible's counts by host."""
    lines = output.partition("PLAY RECAP")[2].splitlines()[1:]
    rows = [line.split(":", 1) for line in lines if " ok=" in line]
    return {name.strip(): {key: int(value) for key, _, value in (pair.partition("=") for pair in rest.split())} for name, rest in rows}


def changed(output: str) -> int:
    counts = recap(output)
    assert counts
    return sum(row["changed"] for row in counts.values())


# --- the way from nothing to a trained model


def test_the_lab_is_made_once(lab):
    assert changed(lab.up(f"nodes={NODES}").stdout) == 0


def test_a_second_provision_changes_nothing(cluster):
    done = cluster.play("provision")
    assert set(recap(done.stdout)) == set(NAMES)
    assert changed(done.stdout) == 0


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


def test_five_hosts_train_the_same_weights_and_the_chief_evaluates(cluster):
    done = cluster.play("train", "run=first", *SHORT)
    assert "first: SUCCEEDED" in done.stdout, done.stdout
    summary = cluster.summary("first")
    assert len(set(summary["weights_sha256_by_rank"])) == 1
    assert len(summary["weights_sha256_by_rank"]) == NODES
    assert {path.name for path in (cluster.run("first") / "workers").iterdir()} == set(NAMES)
    hosts = json.loads((cluster.run("first") / "cluster.json").read_text())["hosts"]
    assert [host["tf_config"]["cluster"]["worker"][host["rank"]] for host in hosts] == [
        f"{cluster.address(node)}:12345" for node in range(1, NODES + 1)
    ]
    shown = cluster.play("evaluate", "run=first", "epoch=first,best").stdout
    assert "first on its test images" in shown, shown
    assert "-i inventory/lab evaluate.yml -e run=first" in shown, shown


def test_a_second_run_sends_less_than_a_megabyte(cluster):
    """Without PowerSGD's memory, 11 MB per worker and state: acknowledging what is collected counts as sent, too."""
    before = cluster.sent()
    cluster.play("train", "run=second", *SHORT[:-1], SHORT[-1] + ",reduction.name=packed")
    sent = cluster.sent() - before
    assert 10_000 < sent < 1_000_000, sent


@EXHAUSTIVE
def test_data_and_code_are_sent_once_for_all_hosts(cluster):
    """The dataset is removed from the shared folder; sending it anew costs its size, not five times that."""
    folder = cluster.on(1, "ls -d /mnt/lockstep/datasets/*").strip()
    size = int(cluster.on(1, f"du -sb {folder}").split()[0])
    cluster.on(1, f"rm -rf {folder}")
    before = cluster.sent()
    cluster.play("train", "run=again", *SHORT)
    assert size < cluster.sent() - before < 1.2 * size + 1_000_000
    assert cluster.on(5, f"ls {folder}/manifest.json").strip()


@EXHAUSTIVE
def test_a_report_makes_the_test_results_that_it_lacks(cluster):
    shown = cluster.play("report", "run=second").stdout
    folder = cluster.run("second") / "report"
    assert {"README.md", "index.html", "second.zip"} <= {path.name for path in folder.iterdir()}, shown
    assert "test accuracy" in (folder / "README.md").read_text().lower()
    assert (cluster.run("second") / "evaluations.csv").is_file()


@EXHAUSTIVE
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


@EXHAUSTIVE
def test_two_settings_are_tried_side_by_side_on_disjoint_ssh_hosts(cluster):
    given = ("vary=optimizer.learning_rate=0.01,0.02", "workers=2", "epochs=1", "set=data.limit_train=6400", "sweep=rates")
    shown = cluster.play("sweep", *given, timeout=400).stdout
    folder = cluster.root / "sweeps" / "rates"
    rows = settings.STORE.read(folder / settings.FILE)
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


def test_status_and_stop_work_over_ssh_and_a_stopped_run_continues(cluster):
    cluster.play("train", "run=stopped", "detach=true", *LONG)
    status = cluster.play("status", "run=stopped").stdout
    assert all(name in status for name in NAMES)
    cluster.play("stop", "run=stopped")
    assert cluster.summary("stopped")["state"] == "CANCELLED"
    steps = cluster.summary("stopped")["steps"]
    done = cluster.play("train", "run=stopped", f"epochs={steps // 20 + 1}")
    assert "stopped: SUCCEEDED" in done.stdout, done.stdout


# --- who may reach the worker port


def listen(lab: Lab, node: int) -> None:
    code = "import socket,time; s=socket.create_server((chr(48)+chr(46)+chr(48)+chr(46)+chr(48)+chr(46)+chr(48),12345)); time.sleep(600)"
    lab.container("exec", "-d", f"{PREFIX}-node{node}", "python3", "-c", code)
    await_until(lambda: ":12345" in lab.on(node, "ss -ltn"), 10, "listening")


def connects(lab: Lab, container: str, address: str) -> bool:
    code = f"import socket; socket.create_connection(('{address}', 12345), 3)"
    try:
        lab.container("exec", container, "python3", "-c", code)
    except Exception:
        return False
    return True


def test_a_stranger_can_not_reach_the_worker_port_and_members_can(cluster):
    try:
        listen(cluster, 1)
        with cluster.stranger() as stranger:
            assert connects(cluster, f"{PREFIX}-node2", cluster.address(1))
            assert not connects(cluster, stranger, cluster.address(1))
    finally:
        cluster.on(1, "fuser -k 12345/tcp 2>/dev/null || ss -ltnp | sed -n 's/.*:12345.*pid=\\([0-9]*\\).*/\\1/p' | xargs -r kill")


# --- a host that goes away


def cut(lab: Lab, node: int) -> None:
    lab.on(node, "ip link set eth0 down")


def join(lab: Lab, node: int) -> None:
    """Plug a node in again; the cluster is ready when a training passes its look at the hosts."""
    lab.on(node, f"ip link set eth0 up; ip route replace default via {lab.address(1).rpartition('.')[0]}.1")
    looks = []

    def ready() -> bool:
        looks.append(lab.play("train", "--check", "run=joined", check=False))
        return looks[-1].returncode == 0

    try:
        await_until(ready, 90, f"node{node} back")
    except AssertionError as late:
        late.add_note(looks[-1].stdout[-3000:] + looks[-1].stderr[-1000:])
        raise


def down(lab: Lab, node: int, command: str, *arguments: str) -> str:
    """What a command says while one node can't be reached; it starts nothing on any other."""
    cut(lab, node)
    try:
        done = lab.play(command, *arguments, check=False)
        assert done.returncode != 0
        assert re.search(rf"\[FAIL\] node{node} +ssh +.*it is down", done.stdout), done.stdout
        assert len(re.findall(r"\[FAIL\]", done.stdout)) == 1, done.stdout
        assert not any(lab.sessions(one) for one in range(1, NODES + 1))
    finally:
        join(lab, node)
    return done.stdout


@pytest.mark.parametrize("node", [pytest.param(4, marks=EXHAUSTIVE), 1])
def test_a_host_that_is_down_before_the_launch_is_named(cluster, node):
    down(cluster, node, "train", f"run=down{node}", *SHORT)
    assert cluster.summary(f"down{node}")["state"] == "FAILED_PREFLIGHT"


@EXHAUSTIVE
def test_the_doctor_judges_the_others_when_the_first_host_is_down(cluster):
    message = down(cluster, 1, "doctor")
    assert all(re.search(rf"\[OK\] +{name} +ssh +reachable", message) for name in NAMES[1:]), message


def test_a_host_unplugged_while_it_trains_ends_the_run_and_the_same_command_continues_it(cluster):
    playbook = cluster.start("train", "run=unplugged", *LONG[:2], f"{LONG[2]},recovery.max_restarts=0")
    try:
        await_until(lambda: cluster.steps(1, "unplugged") > 20 or playbook.poll() is not None, 120, "training")
        cut(cluster, 3)
        output, _ = playbook.communicate(timeout=240 * SLOWEST)
    finally:
        join(cluster, 3)
        if playbook.poll() is None:
            playbook.send_signal(signal.SIGINT)
            playbook.wait(30)
    assert playbook.returncode != 0
    assert "First failure: node3 (rank 2)" in output, output
    assert "can't be reached" in output, output
    assert "train.yml -e run=unplugged" in output, output
    assert cluster.summary("unplugged")["state"] == "FAILED"
    cluster.play("stop", "run=unplugged")
    done = cluster.play("train", "run=unplugged", f"epochs={cluster.summary('unplugged')['epochs_done'] + 1}")
    assert "unplugged: SUCCEEDED" in done.stdout, done.stdout


@EXHAUSTIVE
@pytest.mark.parametrize("transport", ["direct", "tensorflow"])
@pytest.mark.parametrize("node", [1, 3])
def test_the_others_of_an_unplugged_host_end_within_30_s(cluster, node, transport):
    run = f"cut{node}-{transport}"
    others = [number for number in range(1, NODES + 1) if number != node]

    def end(number: int) -> str:
        return cluster.on(number, f"cat /home/lockstep/lockstep/runs/{run}/workers/node{number}/exit.json 2>/dev/null", check=False)

    cluster.play("train", f"run={run}", *LONG[:2], f"{LONG[2]},reduction.transport={transport},recovery.max_restarts=0", "detach=true")
    try:
        await_until(lambda: cluster.steps(node, run) > 20, 120, "training")
        cut(cluster, node)
        since = time.time()
        await_until(lambda: all(end(number) for number in others), 120, "the end of the others")
        ends = {number: json.loads(end(number)) for number in others}
    finally:
        join(cluster, node)
    print({number: (round(one["ended_at"] - since, 1), one["exit_code"]) for number, one in ends.items()})
    assert {one["exit_code"] for one in ends.values()} == {75}
    assert max(one["ended_at"] for one in ends.values()) - since < 30
    cluster.play("stop", f"run={run}")


@EXHAUSTIVE
def test_a_host_unplugged_while_it_is_provisioned_is_named_and_the_same_command_finishes(cluster):
    cluster.on(2, "rm -rf /home/lockstep/lockstep/venv")
    playbook = cluster.start("provision")
    venv = "ls -d /home/lockstep/lockstep/venv /home/lockstep/lockstep/.lockstep-install-* 2>/dev/null | wc -l"
    try:
        await_until(lambda: cluster.on(2, venv, check=False).strip() not in ("", "0") or playbook.poll() is not None, 120, "installing")
        assert playbook.poll() is None, playbook.communicate()[0]
        cut(cluster, 2)
        output, _ = playbook.communicate(timeout=300 * SLOWEST)
    finally:
        join(cluster, 2)
    assert playbook.returncode != 0
    assert re.search("node2: .*can't be reached|node2: it is down", output), output
    # The node may have gone on by itself: what it had begun needs no network.
    cluster.play("provision", timeout=600)
    assert changed(cluster.play("provision").stdout) == 0
    assert cluster.on(2, "/home/lockstep/lockstep/venv/bin/python -c 'import tensorflow' && echo fine", check=False).strip() == "fine"


def test_the_shared_folder_comes_back_after_a_reboot(cluster):
    cluster.container("restart", "-t", "5", f"{PREFIX}-node2")
    await_until(lambda: "glusterfs" in cluster.on(2, "findmnt -n -o FSTYPE /mnt/lockstep", check=False), 90, "mounted again")
    await_until(lambda: "trainer-" in cluster.on(2, "ls /mnt/lockstep/code", check=False), 60, "read again")
    assert "table inet lockstep" in cluster.on(2, "nft list ruleset")
    assert "rebooted: SUCCEEDED" in cluster.play("train", "run=rebooted", *SHORT).stdout


@EXHAUSTIVE
def test_a_supervised_run_goes_on_by_itself_after_a_host_restarts(cluster):
    run, log = "restarted", "/home/lockstep/lockstep/runs/restarted/workers/node1/worker.log"
    playbook = cluster.start("train", f"run={run}", *LONG[:2], f"{LONG[2]},recovery.max_restarts=3")
    try:
        await_until(lambda: cluster.steps(2, run) > 20 or playbook.poll() is not None, 120, "training")
        cluster.container("restart", "-t", "30", f"{PREFIX}-node2")
        await_until(lambda: "restart 1 of this launch" in cluster.on(1, f"cat {log}", check=False), 240, "the restart")
        steps = cluster.steps(1, run)
        await_until(lambda: cluster.steps(1, run) > steps + 20 or playbook.poll() is not None, 120, "training")
        assert playbook.poll() is None, playbook.communicate()[0]
        cluster.play("stop", f"run={run}")
    finally:
        if playbook.poll() is None:
            playbook.send_signal(signal.SIGINT)
            playbook.wait(60)
    assert (cluster.summary(run)["state"], cluster.summary(run)["restarts"]) == ("CANCELLED", 1)
