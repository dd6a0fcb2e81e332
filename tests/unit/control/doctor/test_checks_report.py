"""What users and programs read of the doctor's checks."""

import json

import pytest

from control.doctor.checks import across, report
from control.doctor.checks.model import FAIL, OK, WARN, Check
from tests.unit.doctor_samples import MANIFEST, NAMES, NEED, change_pairs, doctor, healthy, inventory, network_of, unreachable


def test_healthy_cluster_has_nothing_to_say():
    assert doctor() == []
    assert doctor(network=network_of()) == []


def test_every_check_of_a_healthy_host_is_shown():
    hosts = inventory(["node01", "node02"])
    actual = across.examine(hosts, {host["name"]: healthy(host["name"]) for host in hosts}, network_of(["node01", "node02"]), NEED)
    lines = report.render(actual, verbose=True).splitlines()
    assert lines[:16] == [
        "[OK]   node01  ssh          reachable as pi",
        "[OK]   node01  python       3.11.2, TensorFlow 2.21.0",
        "[OK]   node01  machine      aarch64, Raspberry Pi 4 Model B Rev 1.4, 4 CPUs, Debian GNU/Linux 12 (bookworm)",
        "[OK]   node01  disk         20,000 MB free",
        "[OK]   node01  memory       3,100 of 3,794 MB available",
        "[OK]   node01  clock        correct within 0.5 s",
        "[OK]   node01  tmux         3.3a",
        "[OK]   node01  port         12345 is free",
        "[OK]   node01  name         node01 is 10.0.0.1",
        "[OK]   node01  dfs          /mnt/shared/lockstep (fuse.glusterfs of node01:/dfs), 50,000 MB free",
        f"[OK]   node01  file         {MANIFEST} da7ada7ada7ada7a",
        "[OK]   node01  throttling   not throttled",
        "[OK]   node01  temperature  51 C",
        "[OK]   node01  governor     performance",
        "[OK]   node01  load         load 0.1 on 4 cores",
        "[OK]   node01  address      10.0.0.1",
    ]
    assert lines[16] == "[OK]   node01  network      reaches 1 of 1 others, 0.3 ms, 940 Mbit/s"
    assert lines[-1] == "2 hosts, 34 checks: 34 OK, 0 WARN, 0 FAIL; this cluster can train"


def test_matrix():
    network = change_pairs(network_of(NAMES[:3]), unreachable("timeout", ""), lambda here, there: (here, there) == ("node01", "node03"))
    network["node02"]["pairs"]["node03"]["mbit_s"] = None
    assert report.matrix(network).splitlines() == [
        "delay (ms)    node01    node02    node03",
        "node01             -      0.30         !",
        "node02          0.30         -      0.30",
        "node03          0.30      0.30         -",
        "",
        "bandwidth (Mbit/s)    node01    node02    node03",
        "node01                     -       940         !",
        "node02                   940         -         ?",
        "node03                   940       940         -",
    ]


def test_matrix_without_bandwidth_and_with_an_unreachable_host():
    network = change_pairs(network_of(NAMES[:2]), {"mbit_s": None}, lambda here, there: True)
    network["node03"] = {"unreachable": "gone"}
    assert report.matrix(network).splitlines()[0] == "delay (ms)    node01    node02"
    assert "bandwidth" not in report.matrix(network)


def test_a_cluster_with_warnings_can_train():
    ok, warn, fail = (Check(level, "n", "x", "y") for level in (OK, WARN, FAIL))
    assert [report.document(those, {}, None)["ok"] for those in ([], [ok], [ok, warn], [warn, fail])] == [True, True, True, False]


def test_summary_counts():
    ok, warn, fail = (Check(level, "n", "x", "y") for level in (OK, WARN, FAIL))
    assert report.render([ok]) == "1 host, 1 check: 1 OK, 0 WARN, 0 FAIL; this cluster can train"
    assert report.render([ok, warn, fail]).splitlines()[-1] == "1 host, 3 checks: 1 OK, 1 WARN, 1 FAIL; this cluster can't train"


def test_document_is_json():
    facts = {name: healthy(name) for name in NAMES}
    actual = across.examine(inventory(), facts, network_of(), NEED)
    written = json.loads(json.dumps(report.document(actual, facts, network_of())))
    assert written["ok"] is True
    assert written["checks"][0] == {"level": "OK", "host": "node01", "name": "ssh", "value": "reachable as pi", "limit": "", "fix": ""}
    assert written["summary"].startswith("5 hosts, ")
    assert set(written) == {"ok", "summary", "checks", "facts", "network", "prediction"}


def test_hosts_with_the_same_trouble_share_a_line():
    actual = [Check(FAIL, f"n{number}", "tmux", "is missing", fix="install it") for number in (1, 2)]
    actual += [Check(OK, "n3", "tmux", "3.3"), Check(FAIL, "n3", "disk", "1 MB free")]
    assert report.render(actual).splitlines() == [
        "[FAIL] n1, n2  tmux  is missing. Fix: install it",
        "[FAIL] n3      disk  1 MB free",
        "3 hosts, 4 checks: 1 OK, 0 WARN, 3 FAIL; this cluster can't train",
    ]


def test_a_shared_line_says_on_each():
    def change(facts):
        for name in ("node01", "node02", "node04", "node05"):
            facts[name]["tmux"] = None
            facts[name]["time"] = 4600.7
        facts["node03"].update(port={"number": 12345, "state": "busy", "process": None}, tmux=None)
        facts["node02"]["port"] = facts["node03"]["port"]

    busy = "12345 is held by another program (on each: sudo ss -ltnp 'sport = :12345') (limit: free)"
    assert doctor(change) == [
        "[FAIL] node01, node02 and 2 more  clock  1:00:00 h ahead (limit: 1 s). Fix: on each: sudo timedatectl set-ntp true",
        "[FAIL] node01-node05              tmux   is missing. Fix: on each: sudo apt-get install tmux",
        f"[FAIL] node02, node03             port   {busy}. Fix: end that program, or set another worker_port",
    ]


@pytest.mark.parametrize(
    ("hosts", "shown"),
    [
        (["n1"], "n1"),
        (["n1", "n2"], "n1, n2"),
        (["n1", "n2", "n3"], "n1-n3"),
        (["n3", "n1", "n2"], "n1-n3"),
        (["n9", "n10", "n11"], "n9-n11"),
        (["n08", "n09", "n10"], "n08-n10"),
        (["n1", "n02", "n3"], "n1, n02, n3"),
        (["pi4-1.lab", "pi4-2.lab", "pi4-3.lab"], "pi4-1.lab-pi4-3.lab"),
        (["n1.lab2", "n2.lab2", "n3.lab2"], "n1.lab2, n2.lab2, n3.lab2"),
        (["10.0.0.9", "10.0.0.10", "10.0.0.11"], "10.0.0.9-10.0.0.11"),
        (["n1", "n2", "n4"], "n1, n2, n4"),
        (["n1", "n2", "n4", "n5"], "n1, n2 and 2 more"),
        (["anna", "bert", "carl", "dora", "n1"], "anna, bert and 3 more"),
    ],
)
def test_names_of_hosts_that_share_a_line(hosts, shown):
    actual = [Check(FAIL, name, "tmux", "is missing") for name in hosts]
    assert report.render(actual).splitlines()[0] == f"[FAIL] {shown}  tmux  is missing"
