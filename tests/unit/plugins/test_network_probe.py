"""Hosts that measure the network between them: real processes on loopback ports, and what may stand in their way."""

import gc
import itertools
import multiprocessing
import os
import signal
import socket
import threading
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest

from tests.ports import free_ports
from tests.project import await_until
from tests.unit.fake_module import Module, failed, load
from trainer.host import ports

probe = load("network_probe")
NONCE = "0123456789abcdef"
LONG_S, SHORT_S = 60.0, 0.5
"""How long hosts wait for those that do not answer: where all do, and where one never will."""


def cluster(count, given=None):
    return [{"name": f"pi{rank}", "address": "127.0.0.1", "port": port} for rank, port in enumerate(given or free_ports(count))]


def params(rank, hosts, **more):
    usual = {"nonce": NONCE, "seconds": LONG_S, "bandwidth": False, "bytes": 1 << 22, "pair_seconds": 0.1}
    return {**usual, "rank": rank, "hosts": hosts, **more}


def sockets_open():
    actual = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that listed them
            actual.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sum(name.startswith("socket:") for name in actual)


class Hasty(probe.Probe):
    """A probe that soon gives up who says nothing."""

    connect_s = answer_s = SHORT_S


class Sure(probe.Probe):
    """A probe that waits for nobody else once it has met the hosts that are `present`, and once these have joined it as their leader."""

    @property
    def deadline(self):
        present = [rank for rank in self.others if rank in self.params["present"]]
        met = all(self.pairs[rank]["reachable"] for rank in present)
        return 0.0 if met and (self.leader != self.rank or len(self.joined) == len(present)) else self._until

    @deadline.setter
    def deadline(self, value):
        self._until = value


class SureAndHasty(Hasty, Sure):
    """A probe that soon gives up who says nothing, once it has met the others."""


def work(queue, made, given):
    # What the parent's earlier tests left is none of the probe's, and is not taken away meanwhile.
    gc.disable()
    before = sockets_open()
    actual = made(given).run()
    for thread in {*threading.enumerate()} - {threading.current_thread()}:
        thread.join(LONG_S)
    actual["left"] = (threading.active_count() - 1, sockets_open() - before)
    actual["pid"] = os.getpid()
    queue.put((given["rank"], actual))


def start(given, made=probe.Probe, between=lambda rank: None):
    """A process per host's parameters, and the queue of their results; `between` is called after the start of each."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    processes = [context.Process(target=work, args=(queue, made, one)) for one in given]
    for process, one in zip(processes, given, strict=True):
        process.start()
        between(one["rank"])
    return processes, queue


def measure(hosts, ranks=None, lists=None, made=probe.Probe, between=lambda rank: None, **more):
    """Results by rank, each host a process of its own; every one must end by itself, with all closed."""
    ranks = list(range(len(hosts)) if ranks is None else ranks)
    processes, queue = start([params(rank, (lists or {}).get(rank, hosts), **more) for rank in ranks], made, between)
    for process in processes:
        process.join(LONG_S)
    assert [process.exitcode for process in processes] == [0] * len(ranks)
    actual = dict(queue.get() for _ in ranks)
    assert {one["left"] for one in actual.values()} == {(0, 0)}
    return actual


def reached(actual):
    return {rank: {name for name, pair in one["pairs"].items() if pair["reachable"]} for rank, one in actual.items()}


@contextmanager
def listener(handle=None, backlog=8):
    """A stranger's server; `handle(connection)` or nothing at all."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=backlog)) as server:

        def accept():
            while True:
                try:
                    connection = server.accept()[0]
                except OSError:
                    return
                threading.Thread(target=handle, args=(connection,), daemon=True).start()

        if handle:
            threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


# --- schedule


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 13])
def test_every_pair_meets_once_and_nobody_is_twice_in_a_round(count):
    plan = [list(pairs) for pairs in probe.rounds(count)]
    assert sorted(tuple(sorted(pair)) for pairs in plan for pair in pairs) == list(itertools.combinations(range(count), 2))
    for pairs in plan:
        ranks = [rank for pair in pairs for rank in pair]
        assert len(ranks) == len(set(ranks))


# --- all well


def test_direct_ports_are_tried_too():
    hosts = [{**host, "direct_port": port} for host, port in zip(cluster(2), free_ports(2), strict=True)]
    assert reached(measure(hosts)) == {0: {"pi1"}, 1: {"pi0"}}
    with listener(greet_back) as taken:
        hosts[1]["direct_port"] = taken
        actual = measure(hosts)
    assert actual[1]["listening"].startswith(f"port {taken}: Address already in use, held by ")
    assert (actual[0]["pairs"]["pi1"]["reachable"], actual[0]["pairs"]["pi1"]["port"]) == (False, taken)
    assert actual[1]["pairs"]["pi0"]["reachable"] is True


@pytest.mark.parametrize("count", [2, 3, 5])
def test_all_pairs_are_measured(count):
    hosts = cluster(count)
    actual = measure(hosts, bandwidth=True)
    for rank, one in actual.items():
        assert set(one["pairs"]) == {host["name"] for host in hosts} - {f"pi{rank}"}
        for pair in one["pairs"].values():
            assert pair["reachable"] is True
            assert "error" not in pair
            assert 0 < pair["rtt_min_ms"] <= pair["rtt_ms"] < 100
            assert pair["mbit_s"] > 10
            assert abs(pair["clock_s"]) < 0.1
            assert pair["mtu_trouble"] is False
            assert pair["mtu"] >= 65535
        assert one["leader"] == "pi0"
        assert one["listening"] is None
        assert one["ring"]["to"] == f"pi{(rank + 1) % count}"
        assert one["ring"]["mbit_s"] > 10
        assert "lo" not in one["interfaces"]


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_hosts_with_ipv6_addresses():
    actual = measure([{**host, "address": "::1"} for host in cluster(2)], bandwidth=True)
    assert reached(actual) == {0: {"pi1"}, 1: {"pi0"}}
    assert all(pair["mtu"] >= 65535 for one in actual.values() for pair in one["pairs"].values())


def test_hosts_that_start_late_are_waited_for():
    """With all hosts there it ends long before its seconds are over, for which no test would wait; without bandwidth it sends little."""
    hosts = cluster(3)

    def listens(rank):
        # Until then it may have called the others, in vain.
        await_until(lambda: ports.taken(hosts[rank]["port"]), LONG_S, f"{rank} listens", 0.01)

    actual = measure(hosts, between=listens, seconds=10 * LONG_S)
    assert reached(actual) == {0: {"pi1", "pi2"}, 1: {"pi0", "pi2"}, 2: {"pi0", "pi1"}}
    assert all("mtu" in pair and "mbit_s" not in pair for one in actual.values() for pair in one["pairs"].values())
    assert all(one["ring"] is None for one in actual.values())


def test_one_host_alone_has_nobody_to_measure():
    actual = measure(cluster(1))
    assert (actual[0]["pairs"], actual[0]["ring"], actual[0]["leader"]) == ({}, None, "pi0")


def test_bytes_and_seconds_bound_a_measurement():
    ours, theirs = socket.socketpair()
    seen = []

    def swallow():
        while True:
            (op, size) = probe.take(theirs, probe.HEAD, 5)
            probe.read(theirs, memoryview(bytearray(size)), 5)
            seen.append(size)
            if op == b"z":
                probe.send(theirs, b"z")
                return

    for limit, seconds, most in ((1 << 20, 9.0, 1 << 20), (1 << 40, 0.2, 1 << 40)):
        seen.clear()
        reader = threading.Thread(target=swallow)
        reader.start()
        assert probe.push(ours, limit, seconds) > 0
        reader.join()
        assert 0 < sum(seen) <= most
    ours.close()
    theirs.close()


# --- missing, foreign, silent


@pytest.mark.parametrize("missing", [0, 2])
def test_a_missing_host_is_named_and_the_others_are_measured(missing):
    hosts = cluster(3)
    here = [rank for rank in range(3) if rank != missing]
    actual = measure(hosts, here, made=Sure, bandwidth=True, present=here)
    for rank in here:
        other = next(one for one in here if one != rank)
        gone = actual[rank]["pairs"][f"pi{missing}"]
        assert gone == {"reachable": False, "kind": "refused", "error": "Connection refused"}
        assert actual[rank]["pairs"][f"pi{other}"]["mbit_s"] > 10
        assert actual[rank]["leader"] == f"pi{here[0]}"
        assert actual[rank]["ring"]["to"] == f"pi{other}"


def greeting(data):
    def greet(connection):
        with connection:
            connection.sendall(data)
            connection.recv(100)

    return greet


greet_back = greeting(b"SSH-2.0-OpenSSH_9.2 and more to come\r\n")
greet_as_grpc = greeting(bytes.fromhex("000018040000000000") + bytes(24))


def repeat(connection):
    with connection:
        while data := connection.recv(100):
            connection.sendall(data)


def keep_quiet(connection):
    with connection:
        while connection.recv(100):
            pass


@pytest.mark.parametrize(
    ("handle", "kind", "error"),
    [
        (greet_back, "stranger", "something else, its answer begins b'SSH-2.0-', listens there"),
        (greet_as_grpc, "stranger", "a gRPC server (a training?) listens there"),
        (greeting(b""), "stranger", "something else listens there and hangs up"),
        (repeat, "other_run", "the probe of another run listens there"),
        (keep_quiet, "silent", "something accepts the connection and never answers"),
        (None, "silent", "something accepts the connection and never answers"),
    ],
)
def test_a_stranger_on_a_port_is_not_believed(handle, kind, error):
    with listener(handle) as port:
        hosts = cluster(3, [*free_ports(2), port])
        actual = measure(hosts, [0, 1], made=SureAndHasty if kind == "silent" else Sure, present=[0, 1])
    for rank in (0, 1):
        assert actual[rank]["pairs"]["pi2"] == {"reachable": False, "kind": kind, "error": error}
        assert actual[rank]["pairs"][f"pi{1 - rank}"]["reachable"] is True


def test_a_host_whose_port_is_busy_says_so_and_still_measures():
    with listener(greet_back) as port:
        hosts = cluster(3, [port, *free_ports(2)])
        actual = measure(hosts, bandwidth=True)
    assert actual[0]["listening"].startswith(f"port {port}: Address already in use, held by ")
    # The probes were forked from this process, so they hold its listener, too; one may have a lower number.
    holders = {os.getpid(), *(one["pid"] for one in actual.values())}
    assert any(f"(pid {pid}, user " in actual[0]["listening"] for pid in holders)
    assert {one["leader"] for one in actual.values()} == {"pi1"}
    assert reached(actual) == {0: {"pi1", "pi2"}, 1: {"pi2"}, 2: {"pi1"}}
    assert actual[0]["pairs"]["pi1"]["mbit_s"] > 10
    assert actual[1]["pairs"]["pi0"]["kind"] == "stranger"


def test_a_black_hole_looks_like_a_firewall():
    with ExitStack() as stack:
        # A full backlog: the kernel drops what comes after it, as a firewall would.
        server = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0), backlog=0)))
        for _ in range(4):
            filler = stack.enter_context(closing(socket.socket()))
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        hosts = cluster(2, [*free_ports(1), server.getsockname()[1]])
        actual = measure(hosts, [0], made=Hasty, seconds=SHORT_S)
    assert actual[0]["pairs"]["pi1"] == {"reachable": False, "kind": "timeout", "error": "timed out"}


def test_an_unknown_name():
    hosts = cluster(2)
    hosts[1]["address"] = "no-such-host.invalid"
    assert measure(hosts, [0], seconds=SHORT_S)[0]["pairs"]["pi1"]["kind"] == "name"


def test_another_host_at_an_address_is_told():
    hosts = cluster(3)
    mistaken = [*hosts[:2], {**hosts[2], "port": hosts[1]["port"]}]
    actual = measure(hosts, lists={0: mistaken})
    assert actual[0]["pairs"]["pi2"] == {"reachable": False, "kind": "wrong_host", "error": "pi1 answers there"}


@pytest.mark.parametrize("calls", [1, 1000])
def test_another_nonce_is_another_run(calls):
    """Also if its probe ends, and something else is there then."""
    other, left = probe.Probe(params(1, cluster(2), nonce=NONCE + "1")), iter(range(calls))

    def handle(connection):
        with connection:
            if next(left, None) is not None:
                assert other.greet(connection) is None

    with listener(handle) as port:
        hosts = cluster(2, [*free_ports(1), port])
        actual = measure(hosts, [0], seconds=SHORT_S)[0]["pairs"]["pi1"]
    assert actual == {"reachable": False, "kind": "other_run", "error": "the probe of another run listens there"}


def test_a_caller_who_does_not_know_the_nonce_gets_no_service():
    hosts = cluster(1)
    one = probe.Probe(params(0, hosts))
    one.listen()
    try:
        with socket.create_connection(("127.0.0.1", hosts[0]["port"])) as caller:
            caller.sendall(probe.HELLO.pack(probe.MAGIC, bytes(16), 0) + probe.HEAD.pack(b"e", 0))
            magic, shown, _ = probe.take(caller, probe.HELLO, 2)
            assert (magic, shown) == (probe.MAGIC, bytes(16))
            with pytest.raises(ConnectionResetError):
                probe.take(caller, probe.HEAD, 2)
        with socket.create_connection(("127.0.0.1", hosts[0]["port"])) as caller:
            caller.sendall(b"GET / HTTP/1.1\r\nHost: pi0\r\n\r\n")
            with pytest.raises(ConnectionResetError):
                probe.take(caller, probe.HELLO, 2)
        assert one.callers == set()
    finally:
        one.close()


def test_a_host_that_dies_holds_up_nobody():
    class Dies(Hasty):
        """Host 2 is killed while another sends to it as fast as it can."""

        def attend(self, sock):
            attend = probe.read

            def read(sock, view, bound):
                if len(view) == probe.CHUNK:
                    os.kill(os.getpid(), signal.SIGKILL)
                attend(sock, view, bound)

            probe.read = read if self.rank == 2 else attend
            return super().attend(sock)

    hosts = cluster(3)
    started, queue = start([params(rank, hosts, bandwidth=True) for rank in range(3)], Dies)
    for process in started:
        process.join(LONG_S)
    assert [process.exitcode for process in started] == [0, 0, -9]
    actual = dict(queue.get() for _ in range(2))
    assert actual[0]["pairs"]["pi1"]["mbit_s"] > 10
    assert actual[1]["pairs"]["pi0"]["mbit_s"] > 10
    assert actual[0]["pairs"]["pi2"]["reachable"] is True
    assert actual[0]["pairs"]["pi2"]["error"].startswith("lost while measuring: ")
    assert {rank: one["ring"]["to"] for rank, one in actual.items()} == {0: "pi1", 1: "pi0"}


def relay(target, largest):
    """A path on which small messages pass and large ones are lost."""

    def pump(source, sink):
        passed = True
        with source, sink:
            while data := source.recv(1 << 16):
                passed = passed and len(data) <= largest
                if passed:
                    sink.sendall(data)

    def handle(connection):
        try:
            other = socket.create_connection(("127.0.0.1", target))
        except ConnectionRefusedError:  # not started yet
            connection.close()
            return
        threading.Thread(target=pump, args=(other, connection), daemon=True).start()
        pump(connection, other)

    return handle


def test_large_packets_that_vanish_are_noticed():
    hosts = cluster(2)
    with listener(relay(hosts[1]["port"], 1400)) as port:
        narrow = [hosts[0], {**hosts[1], "port": port}]
        actual = measure(hosts, lists={0: narrow}, bandwidth=True, made=Hasty)
    assert actual[0]["pairs"]["pi1"]["mtu_trouble"] is True
    assert actual[0]["pairs"]["pi1"]["rtt_ms"] < 100
    assert "mbit_s" not in actual[0]["pairs"]["pi1"]
    assert actual[1]["pairs"]["pi0"]["mtu_trouble"] is False
    assert actual[1]["pairs"]["pi0"]["mbit_s"] > 10


# --- refusals


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"rank": 2}, "rank=2: there are 2 hosts; give this host's place in them, from 0"),
        ({"nonce": "short"}, "nonce=short: at least 16 characters; make a new random one for each run"),
    ],
)
def test_refusals(more, message):
    assert failed(probe, Module(**{**params(0, cluster(2)), **more})) == message
