"""What a host's files say: invented files, and this machine's own."""

import dataclasses
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.project import await_until
from trainer.host import cgroup, host_load
from trainer.host.host_load import Load, Sample


def write(root, **files):
    """Files by path, with `__` for `/` and `_DOT_` for `.`."""
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.fixture
def unlimited(monkeypatch):
    monkeypatch.setattr(cgroup, "cgroups", lambda controller: [])


@pytest.fixture
def limited(monkeypatch):
    """The control groups of a test: `limited(folder, ...)`."""
    return lambda *folders: monkeypatch.setattr(cgroup, "cgroups", lambda controller: [str(folder) for folder in folders])


def test_the_tightest_cpu_limit_of_version_2(tmp_path, limited):
    write(tmp_path, top__cpu_DOT_max="max 100000", top__a__cpu_DOT_max="50000 100000", top__a__b__cpu_DOT_max="80000 100000")
    write(tmp_path, top__a__cpu_DOT_stat="usage_usec 7500000\nuser_usec 1")
    limited(tmp_path / "top/a/b", tmp_path / "top/a", tmp_path / "top", tmp_path / "missing")
    assert host_load.limiting("cpu") == tmp_path / "top/a"
    assert host_load.cpu_seconds(tmp_path / "top/a") == 7.5


def test_version_1_limit_is_of_another_controller(tmp_path, limited):
    """A cpu limit of version 1 is counted by another controller."""
    write(tmp_path, cpu__a__cpu_DOT_cfs_quota_us="3000", cpu__a__cpu_DOT_cfs_period_us="10000", cpuacct__a__cpuacct_DOT_usage="2500000000")
    limited(tmp_path / "cpu/a")
    assert host_load.cpu_seconds(host_load.limiting("cpu")) == 2.5


def test_without_a_limit_the_whole_host_counts(tmp_path, unlimited):
    hz = host_load.CLOCK_TICKS
    write(tmp_path, stat=f"cpu  {hz} {hz} {2 * hz} {90 * hz} {5 * hz} {hz} {hz} {3 * hz} 0 0\ncpu0 1 1 1\n")
    assert host_load.limiting("cpu") is None
    assert host_load.cpu_seconds(None, tmp_path) == 6


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("memory.max", "anon 550\nfile 300\nfile_mapped 200"),
        ("memory.limit_in_bytes", "cache 300\nrss 1\nmapped_file 2\ntotal_rss 550\ntotal_mapped_file 200"),
    ],
)
def test_memory_that_programs_use(name, kept, tmp_path, limited):
    (tmp_path / name).write_text("1000")
    (tmp_path / "memory.stat").write_text(kept)
    limited(tmp_path)
    assert host_load.memory_in_use() == 750


def test_memory_of_a_host_without_a_limit(tmp_path, unlimited):
    write(tmp_path, meminfo="MemTotal:       4000 kB\nMemFree:  1 kB\nMemAvailable:   1000 kB\n")
    assert host_load.memory_in_use(tmp_path) == 750
    assert host_load.memory_in_use(tmp_path / "missing") == 0


def test_the_clock_is_that_of_the_slowest_cpu(tmp_path):
    for number, now in ((0, "1500000"), (1, "900000")):
        folder = tmp_path / f"devices/system/cpu/cpu{number}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "cpuinfo_max_freq").write_text("1500000\n")
        (folder / "scaling_cur_freq").write_text(now)
    assert host_load.clock(tmp_path) == 600
    assert host_load.clock(tmp_path / "missing") == 0


def test_counters_of_an_invented_host(tmp_path, unlimited):
    hz = host_load.CLOCK_TICKS
    write(tmp_path, stat=f"cpu  0 0 0 0 0 0 0 {3 * hz}\n", vmstat="pgpgin 7\npswpin 42\npswpout 1\n")
    write(tmp_path, self__stat="7 (a b) c) S 1 2 3 4 5 6 7 8 99 10 11")
    write(tmp_path, devices__system__cpu__cpu0__thermal_throttle__core_throttle_count="5")
    write(tmp_path, devices__system__cpu__cpu1__thermal_throttle__package_throttle_count="2")
    sampled = host_load.sample(proc=tmp_path, system=tmp_path)
    assert (sampled.steal, sampled.swapped, sampled.faults, sampled.heat) == (3.0, 42, 99, 7)


def test_files_with_anything_in_them_count_as_nothing(tmp_path, unlimited):
    write(tmp_path, stat="cpu", vmstat="pswpin x", self__stat=")", meminfo="MemTotal: -")
    sampled = host_load.sample(proc=tmp_path, system=tmp_path)
    assert (sampled.steal, sampled.swapped, sampled.faults, sampled.heat) == (0.0, 0, 0, 0)
    assert host_load.memory_in_use(tmp_path) == 0


BEFORE = Sample(at=100.0, own=10.0, group=12.0, steal=1.0, heat=1, swapped=10, faults=20, segments=1000, retransmits=3)
AFTER = Sample(at=110.0, own=14.0, group=18.0, steal=1.5, heat=4, swapped=110, faults=220, segments=3000, retransmits=23)


def test_an_interval_in_rates(monkeypatch):
    monkeypatch.setattr(cgroup, "cpus", lambda: 0.38)
    monkeypatch.setattr(host_load, "memory_in_use", lambda: 700)
    load = host_load.between(BEFORE, AFTER, Load(90_000, 500, reduced_us=40_000))
    assert (load.own_us, load.input_us, load.reduced_us, load.limit, load.memory) == (90_000, 500, 40_000, 380, 700)
    # Of 6 s in 10, 4 were this process's own.
    assert (load.others, load.steal, load.heat, load.swapped, load.faults, load.lost) == (200, 50, 3, 10, 20, 10)


def test_a_row_fits_32_bits():
    """Also of counters that run backwards."""
    row = Load(own_us=10**12, rate=-5).row()
    assert (row[0], min(row), len(row)) == (2**31 - 1, 0, len(dataclasses.fields(Load)))
    assert min(host_load.between(AFTER, BEFORE, Load()).row()) >= 0


def test_another_process_on_this_machine_is_seen(unlimited):
    before = host_load.sample()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            await_until(lambda: host_load.between(before, host_load.sample(), Load()).others > 200, 60, "its load")
        finally:
            busy.kill()


@pytest.fixture
def pair():
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        caller = socket.create_connection(server.getsockname())
        answerer, _ = server.accept()
    with caller, answerer:
        yield caller, answerer


def test_a_connection_s_rate_and_segments(pair):
    caller, answerer = pair
    before = host_load.sample([caller])
    for _ in range(20):
        caller.sendall(bytes(50_000))
        left = 50_000
        while left:
            left -= len(answerer.recv(left))
    after = host_load.sample([caller])
    assert after.segments > before.segments
    assert after.retransmits == 0
    assert host_load.between(before, after, Load(), [caller]).rate > 1000, "kB/s on the loopback interface"


def test_a_closed_connection_counts_as_unknown(pair):
    pair[0].close()
    assert host_load.tcp(pair[0]) is None
    assert host_load.sample([pair[0]]).segments == 0


def test_a_connection_within_this_host_is_no_link():
    """Workers of one machine: its loopback interface has no cable to look at."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as caller:
        called, _ = server.accept()
        with called:
            assert host_load.links([caller, called]) == []
    assert host_load.links([caller]) == [], "closed"
    away = SimpleNamespace(getsockname=lambda: ("10.0.0.1", 1), getpeername=lambda: ("10.0.0.2", 2))
    assert host_load.links([away]) == [away]
