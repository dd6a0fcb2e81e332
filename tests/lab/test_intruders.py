"""Strangers around a training on a real cluster: a machine that is no member, and an ordinary user of a member."""

import re
import shlex
from collections.abc import Iterator

import pytest

from tests.lab.conftest import Lab
from tests.lab.test_attacks import USER
from tests.project import EXHAUSTIVE, await_until

PORTS = (12345, 13345, 24007)
IDLE = 1000
QUICK = ("config=lecture_cnn", "workers=2", "quick=true", "set=reduction.name=packed")

BESIEGE = """
import pathlib, random, resource, socket, sys, time
# Idle connections to each place, and garbage, again and again, from before the workers listen until this is ended.
count, places, note = int(sys.argv[1]), [place.rsplit(":", 1) for place in sys.argv[2:]], pathlib.Path("/tmp/besieged")
resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
held, tried, opened = [], 0, 0
while True:
    for host, port in places:
        for garbage in (b"", random.randbytes(4096), b"GET / HTTP/1.1\\r\\n\\r\\n", b"\\0" * 65536):
            tried += 1
            one = socket.socket()
            one.setblocking(False)
            try:
                one.connect((host, int(port)))
            except BlockingIOError:
                pass
            except OSError:
                one.close()
                continue
            held.append((one, garbage))
    time.sleep(0.02)
    for one, garbage in held[-4 * len(places):]:
        try:
            one.send(garbage or b"x")
            opened += 1
        except OSError:
            pass
    while len(held) > count:
        held.pop(0)[0].close()
    part = note.with_suffix(".part")
    part.write_text(f"{tried} {opened}")
    part.replace(note)
"""


@pytest.fixture
def user(cluster: Lab) -> Iterator[int]:
    """A node with an ordinary user, neither root nor the one who trains."""
    with cluster.user(1, USER):
        yield 1


def counted(cluster: Lab, node: int, verdict: str) -> int:
    """Packets that a node's table has dropped or rejected."""
    table = cluster.on(node, "nft list table inet lockstep")
    return sum(int(number) for number in re.findall(rf"counter packets (\d+) .* {verdict}", table))


def places(cluster: Lab) -> list[str]:
    """Every port of the two nodes that train."""
    return [f"{cluster.address(node)}:{port}" for node in (1, 2) for port in PORTS]


def test_a_machine_that_is_no_member_delays_no_start(cluster):
    """A thousand connections at a time, idle and with garbage, from before the start: every packet is dropped, and counted."""
    before = counted(cluster, 1, "drop")
    begin = shlex.join(["python3", "-c", BESIEGE, str(IDLE), *places(cluster)])
    with cluster.stranger() as stranger:
        cluster.container("exec", "-d", stranger, "sh", "-c", f"exec {begin}")
        tried = ("exec", stranger, "sh", "-c", "cat /tmp/besieged 2>/dev/null || true")
        await_until(lambda: int((cluster.container(*tried).split() or ["0"])[0]) > IDLE, 60, "besieged")
        done = cluster.play("train", "run=strangers", *QUICK)
        assert "strangers: SUCCEEDED" in done.stdout, done.stdout
        assert counted(cluster, 1, "drop") > before
        assert cluster.container(*tried).split()[1] == "0", "nothing that the stranger sent was taken"


@EXHAUSTIVE("trainer/network/handshake.py", "trainer/network/sockets_all_reduce.py", "roles/firewall")
def test_an_ordinary_user_of_a_member_delays_no_start(cluster, user):
    before = counted(cluster, user, "reject")
    begin = shlex.join(["python3", "-c", BESIEGE, str(IDLE), "127.0.0.1:12345", "127.0.0.1:13345", *places(cluster)])
    pid = cluster.on(user, f"cd /; setsid runuser -u {USER} -- {begin} > /dev/null 2>&1 & echo $!").strip()
    try:
        await_until(lambda: cluster.on(user, "cat /tmp/besieged 2>/dev/null", check=False) != "", 60, "besieged")
        done = cluster.play("train", "run=besieged-by-a-user", *QUICK)
    finally:
        cluster.on(user, f"kill -- -{pid} 2>/dev/null; kill {pid} 2>/dev/null; rm -f /tmp/besieged; true")
    assert "besieged-by-a-user: SUCCEEDED" in done.stdout, done.stdout
    assert counted(cluster, user, "reject") > before
    cluster.play("playbooks/delete_run", "run=besieged-by-a-user")
