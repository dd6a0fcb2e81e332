"""Ports that are chosen for workers of this machine, and who holds one that is taken."""

import getpass
import json
import os
import socket
import subprocess
import sys
import time

import pytest
from ansible.errors import AnsibleFilterError

from control.runs.hosts import free_ports
from control.runs.hosts.inventory_hosts import cluster_hosts
from trainer.common.files import write_json
from trainer.host.claims import session_name
from trainer.host.ports import holder, taken

HOSTS = {name: {"worker_port": "auto", "ansible_connection": "local", "worker_address": "127.0.0.1"} for name in ("w1", "w2")}


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """Reservations of this test alone."""
    monkeypatch.setattr(free_ports, "RESERVED", tmp_path / "ports.json")
    return tmp_path


def hosts():
    """Two workers of this machine whose ports are open."""
    return cluster_hosts(HOSTS, ["w1", "w2"])


def test_ports_are_chosen_in_pairs_outside_connections():
    low, high = (int(word) for word in free_ports.EPHEMERAL.read_text().split())
    chosen = free_ports.choose(hosts(), "a")
    assert len({port for host in chosen for port in (host.port, host.direct_port)}) == 4
    for host in chosen:
        assert host.direct_port == host.port + 1000
        assert not any(low <= port <= high for port in (host.port, host.direct_port))
        assert taken(host.port) is taken(host.direct_port) is None


def test_where_connections_take_their_ports_from_is_heeded(scratch, monkeypatch):
    monkeypatch.setattr(free_ports, "EPHEMERAL", scratch / "range")
    free_ports.EPHEMERAL.write_text("20000\t28200\n")
    assert all(28200 < host.port < 28500 for _ in range(20) for host in free_ports.choose(hosts(), "a"))


def test_numbers_of_an_inventory_stay():
    fixed = cluster_hosts({"pi1": {"worker_port": 7}, "pi2": {}}, ["pi1", "pi2"])
    assert [host.port for host in free_ports.choose(fixed, "a")] == [7, 12345]
    assert not free_ports.RESERVED.exists()


def test_another_machine_is_asked_for_a_number():
    message = (
        r"worker_port=auto of pi1: ports are chosen only for workers of this machine \(ansible_connection: local\)\. "
        r"Fix: give the host a number, as in worker_port: 12345"
    )
    with pytest.raises(AnsibleFilterError, match=message):
        cluster_hosts({"pi1": {"worker_port": "auto", "ansible_host": "10.0.0.1"}}, ["pi1"])


def test_number_for_one_of_two_ports_is_refused():
    message = r"worker_direct_port=7 of w1: with worker_port=auto both are chosen\. Fix: leave it out, or give both a number"
    with pytest.raises(AnsibleFilterError, match=message):
        cluster_hosts({"w1": HOSTS["w1"] | {"worker_direct_port": 7}}, ["w1"])


def test_port_or_its_neighbour_taken_is_not_chosen(monkeypatch):
    monkeypatch.setattr(free_ports, "RANGE", range(20000, 20004))
    with socket.create_server(("", 20001)), socket.create_server(("", 21002)):
        for _ in range(5):
            assert {host.port for host in free_ports.choose(hosts(), "a")} == {20000, 20003}


def test_what_one_command_chose_no_other_does(monkeypatch):
    monkeypatch.setattr(free_ports, "RANGE", range(20000, 20004))
    first = {host.port for host in free_ports.choose(hosts(), "a", reserve=True)}
    second = {host.port for host in free_ports.choose(hosts(), "b", reserve=True)}
    assert first | second == {20000, 20001, 20002, 20003}
    monkeypatch.setattr(free_ports, "RESERVED_S", 0.0)
    assert free_ports.choose(hosts(), "c")[0].port in first | second


def test_a_choice_of_the_future_is_none(monkeypatch):
    """It was made before the clock was set back."""
    monkeypatch.setattr(free_ports, "RANGE", range(20000, 20002))
    write_json(free_ports.RESERVED, {"20000": {"run": "a", "at": time.time() + 3600}})
    assert {host.port for host in free_ports.choose(hosts(), "b")} == {20000, 20001}


def test_commands_at_the_same_moment_choose_apart(scratch):
    script = (
        "import json, pathlib, sys; from control.runs.hosts import free_ports; "
        "from trainer.common.plain_values import to_plain; from trainer.rundir.launch_record import Host; "
        "free_ports.RESERVED = pathlib.Path(sys.argv[1]); free_ports.RANGE = range(20000, 20012); "
        "hosts = [Host(name=name, port_chosen=True) for name in 'ab']; "
        "print(json.dumps(to_plain(free_ports.choose(hosts, sys.argv[2], reserve=True))))"
    )
    argv = [sys.executable, "-c", script, str(free_ports.RESERVED)]
    processes = [subprocess.Popen([*argv, f"run{number}"], stdout=subprocess.PIPE) for number in range(6)]
    chosen = [host["port"] for process in processes for host in json.loads(process.communicate()[0])]
    assert len(chosen) == len(set(chosen)) == 12


def test_resumed_run_keeps_its_free_ports(monkeypatch):
    before = free_ports.choose(hosts(), "a", reserve=True)
    assert free_ports.choose(hosts(), "a", before) == before
    with socket.create_server(("", before[0].port)):
        other = free_ports.choose(hosts(), "a", before)
        assert other[0] != before[0]
        assert other[1] == before[1]
        monkeypatch.setattr(free_ports.claims, "sessions", lambda: [f"{session_name('a', 0)}-0123ab"])
        assert free_ports.choose(hosts(), "a", before) == before
    assert free_ports.choose(hosts(), "b", before) != before


def test_a_port_that_is_taken_has_a_holder():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert taken(port).strerror == "Address already in use"
        assert holder(port).endswith(f"(pid {os.getpid()}, user {getpass.getuser()})")
    assert (taken(port), holder(port)) == (None, "")


def test_a_holder_can_not_draw_on_the_terminal():
    script = (
        "import socket, sys; server = socket.create_server(('127.0.0.1', 0)); print(server.getsockname()[1], flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", script, "\x1b]0;owned\x07\n[OK] all is well"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        shown = holder(int(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()
    assert shown.isprintable()
    assert f"(pid {process.pid}, " in shown
    assert len(shown) < 120
