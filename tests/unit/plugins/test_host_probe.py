"""What a host tells of itself."""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time

import pytest

from tests.unit.fake_module import load

probe = load("host_probe")


class Module:
    """As much of an AnsibleModule as is used; `answers` stand in for programs."""

    def __init__(self, answers=None, **params):
        usual = {"python": sys.executable, "port": 1, "address": "127.0.0.1", "dfs": None, "dfs_kind": "mounted"}
        self.params = {**usual, "need_mb": 0, "tokens": [], "fast": True, **params}
        self.answers = answers or {}

    get_bin_path = staticmethod(shutil.which)

    def run_command(self, argv):
        for word, answer in self.answers.items():
            if word in argv:
                return answer
        completed = subprocess.run(argv, capture_output=True, text=True, check=False)
        return completed.returncode, completed.stdout, completed.stderr


# --- all of it


def test_a_fast_look_is_complete(tmp_path, port):
    facts = probe.look(Module(root=str(tmp_path / "not" / "yet"), port=port, dfs=str(tmp_path), need_mb=7))
    assert facts["hostname"] == socket.gethostname()
    assert facts["cores"] == len(os.sched_getaffinity(0))
    assert 0 < facts["cpus"] <= facts["cores"]
    assert facts["python"]["version"] == ".".join(str(part) for part in sys.version_info[:3])
    assert facts["python"]["packages"].keys() >= {"keras", "numpy"}
    assert facts["port"] == {"number": port, "state": "free"}
    assert facts["disk"].keys() == {"path", "mount", "type", "source", "free_mb", "writable", "exists", "need_mb"}
    assert (facts["disk"]["exists"], facts["disk"]["need_mb"]) == (False, 7)
    assert facts["dfs"]["path"] == str(tmp_path)
    assert facts["address"]["own"] is True
    assert 0 < facts["memory"]["available_mb"] <= facts["memory"]["total_mb"]
    assert facts["speed"] is None
    json.dumps(facts)
    assert not (tmp_path / "not").exists()


def test_module_by_itself_reads_the_time_last(monkeypatch, tmp_path):
    returned = {}

    class Whole(Module):
        def __init__(self):
            super().__init__(root=str(tmp_path), fast=False)

        def exit_json(self, **result):
            returned.update(result)

    monkeypatch.setattr(probe, "AnsibleModule", Whole)
    before = time.time()
    probe.main()
    facts = returned["facts"]
    assert returned["changed"] is False
    assert before + facts["seconds"] - 0.05 <= facts["time"] <= time.time()
    assert facts["speed"] > 10


# --- limits


def test_quota_of_either_version_and_the_tightest_wins(tmp_path):
    for name, files in {
        "v2": {"cpu.max": "38000 100000\n"},
        "v2free": {"cpu.max": "max 100000\n"},
        "v1": {"cpu.cfs_quota_us": "3800\n", "cpu.cfs_period_us": "10000\n"},
        "v1free": {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"},
        "tight": {"cpu.max": "25000 100000\n"},
    }.items():
        (tmp_path / name).mkdir()
        for file, content in files.items():
            (tmp_path / name / file).write_text(content)
    at = {name: str(tmp_path / name) for name in ("v2", "v2free", "v1", "v1free", "tight", "none")}
    assert probe.kernel.cpu_quota([at["v2"]]) == pytest.approx(0.38)
    assert probe.kernel.cpu_quota([at["v1"]]) == pytest.approx(0.38)
    assert probe.kernel.cpu_quota([at["v2free"], at["v1free"], at["none"]]) is None
    assert probe.kernel.cpu_quota([at["v2"], at["v2free"], at["tight"]]) == pytest.approx(0.25)


def test_folders_of_control_groups_go_up_to_top(tmp_path):
    own = tmp_path / "cgroup"
    own.write_text("4:memory:/a/b\n3:cpu,cpuacct:/c\n0::/user.slice\n")
    assert probe.kernel.cgroups("memory", "/cg", str(own)) == [
        "/cg/memory/a/b",
        "/cg/memory/a",
        "/cg/memory",
        "/cg/user.slice",
        "/cg",
        "/cg/unified/user.slice",
        "/cg/unified",
    ]
    assert probe.kernel.cgroups("cpu", "/cg", str(own))[:2] == ["/cg/cpu/c", "/cg/cpu"]


@pytest.mark.parametrize("names", [("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")])
def test_memory_limit_counts_and_page_cache_is_free(tmp_path, names):
    (tmp_path / names[0]).write_text(f"{1000 << 20}\n")
    (tmp_path / names[1]).write_text(f"{700 << 20}\n")
    assert probe.memory([str(tmp_path)]) == {"total_mb": 1000, "available_mb": 300}
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {200 << 20}\n")
    assert probe.memory([str(tmp_path)]) == {"total_mb": 1000, "available_mb": 500}
    (tmp_path / names[0]).write_text("max\n" if names[0] == "memory.max" else f"{1 << 62}\n")
    assert probe.memory([str(tmp_path)])["total_mb"] == probe.memory([])["total_mb"], "no limit"


# --- Python


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (None, "is missing"),
        ("echo 'no such thing' >&2; exit 3", "does not run: no such thing"),
        ("echo hello", "does not answer like Python: hello"),
    ],
)
def test_python_that_is_none_is_told(script, error, tmp_path):
    python = tmp_path / "python"
    if script:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    assert probe.python(Module(), str(python)) == {"path": str(python), "error": error}
    assert probe.python(Module(), str(tmp_path))["error"] == "is not a program"


# --- port


def test_port_held_by_a_run_that_lives(tmp_path, port):
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / f"{port}.json").write_text(json.dumps({"run": "old", "session": "old-w0", "at": 1.0}))
    held = {"number": port, "state": "held", "run": "old", "session": "old-w0"}
    assert probe.port(Module({"has-session": (0, "", "")}), port, str(tmp_path)) == held
    assert probe.port(Module({"has-session": (1, "", "")}), port, str(tmp_path))["state"] == "free"


def test_both_ports_are_looked_at(tmp_path, port):
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        facts = probe.look(Module(root=str(tmp_path), port=port, direct_port=number, dfs=str(tmp_path)))
    assert (facts["port"]["state"], facts["direct_port"]["state"], facts["direct_port"]["number"]) == ("free", "busy", number)


# --- names and addresses


def test_own_and_other_addresses():
    assert probe.own_address("127.0.0.1") == {"given": "127.0.0.1", "addresses": ["127.0.0.1"], "own": True, "all": probe.own_addresses()}
    assert probe.own_address("198.51.100.7")["own"] is False
    assert "127.0.0.1" not in probe.own_addresses()


def test_look_that_fails_or_hangs_is_an_error(monkeypatch):
    """A name that nobody knows, a dead mount, no answer."""

    def dead(path):
        raise OSError(107, "Transport endpoint is not connected")

    assert "error" in probe.Bounded(probe.resolve, "no-such-host.invalid").result()
    with monkeypatch.context() as patch:
        patch.setattr(probe.os, "stat", dead)
        patch.setattr(probe.kernel, "existing", lambda path: path)
        assert probe.Bounded(probe.dfs, "/mnt/shared", "glusterfs").result() == {"error": "Transport endpoint is not connected"}
    monkeypatch.setattr(probe, "PATIENCE_S", 0.1)
    hanging = threading.Event()
    assert probe.Bounded(hanging.wait).result() == {"error": "no answer in 0 s"}
    hanging.set()


# --- shared folder

MOUNTS = """22 27 0:21 / / rw - ext4 /dev/vda rw
23 27 0:22 / /mnt rw shared:7 - ext4 /dev/vdb rw
24 27 0:23 / /mnt/shared rw shared:8 - fuse.glusterfs node1:/dfs rw
25 27 0:24 / /mnt/with\\040space rw - nfs4 nas:/x rw
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/mnt/shared/lockstep", ("/mnt/shared", "fuse.glusterfs", "node1:/dfs")),
        ("/mnt/shared", ("/mnt/shared", "fuse.glusterfs", "node1:/dfs")),
        ("/mnt/sharedless", ("/mnt", "ext4", "/dev/vdb")),
        ("/home", ("/", "ext4", "/dev/vda")),
        ("/mnt/with space/x", ("/mnt/with space", "nfs4", "nas:/x")),
    ],
)
def test_mount_of_a_path(path, expected):
    assert probe.kernel.mount_of(path, MOUNTS) == expected


def test_tokens(tmp_path):
    small = tmp_path / "small"
    small.write_bytes(b"abc")
    assert probe.token(str(small)) == {"path": str(small), "bytes": 3, "sha256": hashlib.sha256(b"abc").hexdigest()}
    assert probe.token(str(tmp_path / "no")) == {"path": str(tmp_path / "no"), "error": "No such file or directory"}


def test_gpus_by_the_drivers_word(tmp_path):
    for place, message in (("0000:01:00.0", "Model: \t\t NVIDIA A100\nIRQ:   42\n"), ("0000:02:00.0", "")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "information").write_text(message)
    assert probe.gpus(str(tmp_path)) == ["NVIDIA A100", "unknown"]
    assert probe.gpus(str(tmp_path / "none")) == []


# --- Raspberry Pi


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        ((0, "throttled=0x0\n", ""), {"now": [], "since_boot": []}),
        ((0, "throttled=0x50005\n", ""), {"now": ["under-voltage", "throttled"], "since_boot": ["under-voltage", "throttled"]}),
        ((0, "throttled=0x20000\n", ""), {"now": [], "since_boot": ["frequency capped"]}),
        ((0, "throttled=0x8\n", ""), {"now": ["soft temperature limit"], "since_boot": []}),
        ((255, "VCHI initialization failed\n", ""), None),
    ],
)
def test_throttling_by_the_tool(answer, reported, monkeypatch):
    monkeypatch.setattr(probe.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert probe.throttled(Module({"get_throttled": answer})) == reported
