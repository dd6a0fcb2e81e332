"""Ansible module: which worker port each host reaches, with what delay and how fast."""

import contextlib
import errno
import hashlib
import json
import os
import socket
import statistics
import struct
import threading
import time

from ansible.module_utils import lockstep_ports as taken_ports
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: network_probe
short_description: Measure the network between all hosts, on training's port
description: >-
  All hosts run it at the same time. Each listens on its worker port and calls all others; the lowest reachable rank then orders the
  measurements, one per host at a time. It ends in time even if hosts are missing, and measures in check mode too.
options:
  rank: {type: int, required: true, description: "This host's place in O(hosts), from 0."}
  hosts: {type: list, elements: dict, required: true, description: "All hosts that SSH reaches: name, address, and their ports."}
  nonce: {type: str, required: true, description: "Random text, the same on all hosts, new each time; callers without it are rejected."}
  seconds: {type: float, default: 10, description: How long to wait for hosts that do not answer.}
  bandwidth: {type: bool, default: false, description: Whether to measure throughput as well.}
  bytes: {type: int, default: 67108864, description: Maximum number of bytes in one measurement.}
  pair_seconds: {type: float, default: 0.5, description: Maximum seconds of sending in one measurement.}
"""

RETURN = """
pairs:
  description: >-
    By host, C(reachable). If not reachable, C(error), C(kind) (refused, timeout, no_route, name, silent, stranger, other_run, wrong_host,
    other) and C(port) if it is the direct one. Otherwise C(rtt_ms) (median), C(rtt_min_ms), C(clock_s) (its clock minus this one's),
    C(mtu), C(mtu_trouble) and C(mbit_s) from this host to that.
  returned: always
  type: dict
ring: {description: C(to) and C(mbit_s) while all hosts send to the next at once; or null., returned: always, type: dict}
listening: {description: "Null, or why this host could not listen.", returned: always, type: str}
leader: {description: "The host that ordered the measurements, or null.", returned: always, type: str}
interfaces: {description: MTU by interface., returned: always, type: dict}
seconds: {description: How long it took., returned: always, type: float}
"""

HELLO = struct.Struct("!8s16sH")
HEAD = struct.Struct("!cI")
MAGIC = b"LKSTNET1"
CHUNK = 1 << 18
BIG = 60_000
ECHOES = 10
# The kernel takes 3 s to find that an address is unused; a shorter timeout would look like a firewall's silence.
CONNECT_S = 4.0
ANSWER_S = 2.0
PAUSE_S = 0.2
LARGEST_CLOCK = 1e12
ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)


class _Unproved(Exception):
    """The answer does not come from the host that was called."""

    def __init__(self, kind, text, final=True):
        super().__init__(text)
        self.kind, self.final = kind, final


def main():
    module = AnsibleModule()
    rank, hosts = module.params["rank"], module.params["hosts"]
    if not 0 <= rank < len(hosts):
        module.fail_json(msg=f"rank={rank}: there are {len(hosts)} hosts; give this host's place in them, from 0")
    if len(module.params["nonce"]) < 16:
        module.fail_json(msg=f"nonce={module.params['nonce']}: at least 16 characters; make a new random one for each run")
    module.exit_json(changed=False, **Probe(module.params).run())


def _proof(nonce, role, rank):
    """A proof that only a member of this run can give."""
    return hashlib.sha256(f"{nonce}|{role}|{rank}".encode()).digest()[:16]


def rounds(count):
    """Round-robin tournament: each pair of ranks once, no rank twice in a round."""
    ranks = [*range(count), *([None] if count % 2 else [])]
    half = len(ranks) // 2
    for _ in ranks[1:]:
        yield [pair for pair in zip(ranks[:half], reversed(ranks[half:])) if None not in pair]  # noqa: B905 - Python 3.9
        ranks.insert(1, ranks.pop())


def read(sock, view, bound):
    """Fill `view` in at most `bound` seconds."""
    deadline = time.monotonic() + bound
    while len(view):
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        count = sock.recv_into(view)
        if count == 0:
            raise ConnectionResetError("closed by the other side")
        view = view[count:]


def take(sock, form, bound):
    data = bytearray(form.size)
    read(sock, memoryview(data), bound)
    return form.unpack(data)


def send(sock, op, body=b""):
    sock.settimeout(ANSWER_S)
    sock.sendall(HEAD.pack(op, len(body)) + body)


def _receive(sock, bound=ANSWER_S):
    """One message: its letter and its body."""
    op, size = take(sock, HEAD, bound)
    if size > CHUNK:
        raise ConnectionResetError(f"message of {size} bytes")
    body = bytearray(size)
    read(sock, memoryview(body), ANSWER_S)
    return op, bytes(body)


def push(sock, limit, seconds, bound=ANSWER_S):
    """Send up to `limit` bytes for up to `seconds`; returns Mbit/s until the other side confirms all of them within `bound` seconds."""
    start, sent = time.monotonic(), 0
    size = min(CHUNK, limit)
    block = HEAD.pack(b"d", size) + bytes(size)
    while sent < limit and time.monotonic() - start < seconds:
        sock.settimeout(seconds + bound)
        sock.sendall(block)
        sent += size
    send(sock, b"z")
    _receive(sock, bound)
    return round(sent * 8e-6 / (time.monotonic() - start), 1)


def _ports(host):
    """A host's worker ports: TensorFlow's, and the one for direct connections."""
    return [int(host[name]) for name in ("port", "direct_port", "server_port") if host.get(name)]


class Probe:
    """One host's part in the measurement."""

    connect_s, answer_s = CONNECT_S, ANSWER_S

    def __init__(self, params):
        self.params, self.rank, self.hosts, self.nonce = params, params["rank"], params["hosts"], params["nonce"]
        self.start = time.monotonic()
        self.deadline = self.start + params["seconds"]
        self.step_s = 2 * params["pair_seconds"] + 4 * self.answer_s
        self.others = [rank for rank in range(len(self.hosts)) if rank != self.rank]
        self.pairs = {rank: {"reachable": False, "kind": "timeout", "error": "no answer in time"} for rank in self.others}
        self.ring = self.leader = self.listening = None
        self.channels, self.joined, self.callers = {}, {}, set()
        self.sockets, self.lock, self.over = set(), threading.Condition(), False

    def run(self):
        """Meet, measure, close everything."""
        try:
            self.listen()
            self.together([lambda peer=peer: self.meet(peer) for peer in self.others], self.deadline + 3 * self.answer_s)
            # Without a listener this host can't lead others.
            self.leader = min([*self.channels, *([] if self.listening else [self.rank])], default=None)
            if self.leader == self.rank:
                self.lead()
            elif self.leader is not None:
                self.follow()
        finally:
            self.close()
        return {
            "pairs": {self.hosts[peer]["name"]: dict(pair) for peer, pair in self.pairs.items()},
            "ring": self.ring,
            "listening": self.listening,
            "leader": None if self.leader is None else self.hosts[self.leader]["name"],
            "interfaces": _mtus(),
            "seconds": round(time.monotonic() - self.start, 3),
        }

    def together(self, functions, until):
        """Run all at once, and wait for them."""
        threads = [threading.Thread(target=function, daemon=True) for function in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def keep(self, sock):
        """Remember a socket, to close it at the end."""
        with self.lock:
            if self.over:
                sock.close()
            self.sockets.add(sock)
        return sock

    def drop(self, sock):
        """Close one socket; shutdown wakes a thread that waits for it."""
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        with self.lock:
            self.sockets.discard(sock)
            sock.close()

    def close(self):
        """Close all sockets, which ends all threads."""
        with self.lock:
            self.over = True
            left = list(self.sockets)
        for sock in left:
            self.drop(sock)

    # Answering

    def listen(self):
        """Answer on this host's ports, unless one is busy."""
        host = self.hosts[self.rank]
        family = socket.AF_INET6 if ":" in str(host["address"]) else socket.AF_INET
        for port in _ports(host):
            try:
                server = self.keep(socket.create_server(("", port), family=family, backlog=4 * len(self.hosts)))
            except OSError as error:
                who = taken_ports.holder(port) if error.errno == errno.EADDRINUSE else ""
                self.listening = f"port {port}: {os.strerror(error.errno)}{f', held by {who}' if who else ''}"
                return
            threading.Thread(target=self.accept, args=(server,), daemon=True).start()

    def accept(self, server):
        """Serve each caller in its own thread, up to a limit."""
        while not self.over:
            try:
                sock = self.keep(server.accept()[0])
            except OSError:
                return
            if len(self.sockets) > 6 * len(self.hosts) + 16:
                self.drop(sock)
            else:
                threading.Thread(target=self.serve, args=(sock,), daemon=True).start()

    def serve(self, sock):
        """Serve one caller; a caller that joins stays connected for orders."""
        with contextlib.suppress(OSError):  # the caller has gone; it reports that itself
            rank = self.greet(sock)
            if rank is not None and self.attend(sock):
                with self.lock:
                    self.joined[rank] = sock
                    self.lock.notify_all()
                return
        self.drop(sock)

    def greet(self, sock):
        """The caller's rank, or None if it is not a member of this run."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        magic, proof_given, rank = take(sock, HELLO, self.answer_s)
        member = magic == MAGIC and proof_given == _proof(self.nonce, "call", rank)
        if member:
            self.callers.add(rank)
        if magic == MAGIC:
            sock.sendall(HELLO.pack(MAGIC, _proof(self.nonce, "answer", self.rank) if member else bytes(16), self.rank))
        return rank if member else None

    def attend(self, sock):
        """Answer echoes and discard data until the caller leaves (OSError) or joins (true)."""
        scratch = memoryview(bytearray(CHUNK))
        while True:
            op, size = take(sock, HEAD, 2 * self.params["seconds"] + 2 * len(self.hosts) * self.step_s)
            if op == b"e":
                send(sock, b"e", struct.pack("!d", time.time()))
            elif op == b"d" and size <= CHUNK:
                read(sock, scratch[:size], self.step_s)
            elif op == b"z":
                send(sock, b"z")
            else:
                return op == b"j"

    # Calling

    def meet(self, peer):
        """Call one host on each of its ports until it answers, something else does, or the time is up."""
        first, *others = _ports(self.hosts[peer])
        sock = self.reach(peer, first)
        if sock is None:
            return
        echoed = self.pairs[peer]
        for port in others:
            other = self.reach(peer, port, port=port)
            if other is None:
                return
            self.drop(other)
        self.pairs[peer], self.channels[peer] = echoed, sock

    def reach(self, peer, number, **where):
        """A connection to one port of a host, with its answer recorded in `pairs`; or None, with the reason, and `where`, there."""
        failed = {"reachable": False, **where}
        self.pairs[peer] = {**failed, "kind": "timeout", "error": "no answer in time"}
        while True:
            try:
                sock = self.call(peer, number)
                self.pairs[peer] = {"reachable": True, **self.echo(sock)}
                return sock
            except _Unproved as error:
                final, found = error.final, {"kind": error.kind, "error": str(error)}
            except OSError as error:
                final, found = False, {"kind": _kind(error), "error": error.strerror or str(error)}
            earlier = self.pairs[peer]["kind"]
            # The last attempt may be cut short, and another run's probe may end: then the earlier finding says more.
            if final or earlier == "timeout" or (earlier != "other_run" and found["kind"] != "timeout"):
                self.pairs[peer] = {**failed, **found}
            if final or self.over or time.monotonic() + PAUSE_S >= self.deadline:
                return None
            time.sleep(PAUSE_S)

    def call(self, peer, port):
        """A connection to a host that has proved its identity."""
        endpoint = (str(self.hosts[peer]["address"]), port)
        left = max(0.0, self.deadline - time.monotonic())
        sock = self.keep(socket.create_connection(endpoint, timeout=min(self.connect_s, left + self.answer_s)))
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A slow link must not have seconds of queued data when the time of a measurement is up.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, CHUNK)
            sock.sendall(HELLO.pack(MAGIC, _proof(self.nonce, "call", self.rank), self.rank))
            self.recognise(peer, *take(sock, HELLO, self.answer_s))
        except _Unproved:
            self.drop(sock)
            raise
        except OSError as error:
            self.drop(sock)
            if _kind(error) == "timeout":
                raise _Unproved("silent", "something accepts the connection and never answers", final=False) from error
            raise _Unproved("stranger", "something else listens there and hangs up", final=False) from error
        return sock

    def recognise(self, peer, magic, proof_given, rank):
        """Refuse anything but the intended host, in this very run."""
        if magic != MAGIC:
            # HTTP/2 begins with a frame of type 4.
            what = "a gRPC server (a training?)" if magic[3:4] == b"\x04" else f"something else, its answer begins {magic!r},"
            raise _Unproved("stranger", f"{what} listens there")
        if proof_given != _proof(self.nonce, "answer", rank):
            raise _Unproved("other_run", "the probe of another run listens there", final=False)
        if rank != peer:
            raise _Unproved("wrong_host", f"{self.hosts[rank]['name']} answers there")

    def echo(self, sock):
        """Delay (median), and how far the other clock is ahead (from the fastest echo)."""
        echoes = []
        for _ in range(ECHOES):
            before, sent = time.time(), time.monotonic()
            send(sock, b"e")
            their_clock = struct.unpack("!d", _receive(sock)[1])[0]
            # This host's own answer must stay one that the control node reads.
            if not abs(their_clock) < LARGEST_CLOCK:
                raise ConnectionResetError("its clock is no time")
            echoes.append((time.monotonic() - sent, their_clock - before))
        took, ahead = min(echoes)
        middle = statistics.median(echo[0] for echo in echoes)
        return {"rtt_ms": round(middle * 1000, 3), "rtt_min_ms": round(took * 1000, 3), "clock_s": round(ahead - took / 2, 4)}

    # Measuring

    def follow(self):
        """Follow the leader's orders, until it ends or falls silent."""
        wait = 2 * self.params["seconds"] + 2 * self.answer_s
        try:
            sock = self.call(self.leader, _ports(self.hosts[self.leader])[0])
            send(sock, b"j")
            while True:
                op, body = _receive(sock, wait)
                if op != b"c":
                    return
                self.obey(*json.loads(body))
                send(sock, b"r")
                wait = 4 * self.step_s
        except (OSError, _Unproved) as error:
            self.pairs[self.leader]["error"] = f"lost while measuring: {error}"

    def lead(self):
        """Let every pair measure, then all at once in a ring."""
        self.gather()
        members = {self.rank, *self.joined}
        for pairs in rounds(len(self.hosts)):
            for way in (1, -1):
                self.step(members, [pair[::way] for pair in pairs], False)
        chain = sorted(members)
        if self.params["bandwidth"] and len(chain) > 1:
            self.step(members, list(zip(chain, [*chain[1:], chain[0]])), True)  # noqa: B905 - Python 3.9
        for sock in list(self.joined.values()):
            with contextlib.suppress(OSError):  # it has gone already
                send(sock, b"x")

    def gather(self):
        """Wait for all callers to join, and until the deadline for the rest."""
        with self.lock:
            while len(self.joined) < len(self.others):
                end = self.deadline + (self.params["seconds"] if self.callers - set(self.joined) else 0)
                if time.monotonic() >= end:
                    return
                self.lock.wait(0.1)

    def step(self, members, pairs, ring):
        """Let several measure at once; those that do not report in time get no more orders."""

        def order(sender, receiver):
            if sender == self.rank:
                self.obey(receiver, ring)
                return
            try:
                send(self.joined[sender], b"c", json.dumps([receiver, ring]).encode())
                _receive(self.joined[sender], self.step_s)
            except OSError:
                members.discard(sender)

        work = [lambda pair=pair: order(*pair) for pair in pairs if pair[0] in members]
        self.together(work, time.monotonic() + self.step_s + self.answer_s)

    def obey(self, peer, ring):
        """Measure the path to one host, unless it could not be met."""
        sock, pair = self.channels.get(peer), self.pairs[peer]
        if sock is None:
            return
        try:
            if ring:
                self.ring = {"to": self.hosts[peer]["name"], "mbit_s": self.push(sock)}
                return
            pair.update(self.echo(sock))
            self.large(sock, pair)
            if self.params["bandwidth"] and not pair["mtu_trouble"]:
                pair["mbit_s"] = self.push(sock)
        except OSError as error:
            pair["error"] = f"lost while measuring: {error}"
        if pair.get("mtu_trouble") or "error" in pair:
            self.drop(self.channels.pop(peer))

    def push(self, sock):
        """Mbit/s to one host, within the bounds set."""
        return push(sock, self.params["bytes"], self.params["pair_seconds"])

    def large(self, sock, pair):
        """Record the path's MTU, and whether a message of many full packets is lost where small ones just passed."""
        pair["mtu_trouble"] = False
        try:
            push(sock, BIG, self.answer_s, self.answer_s)
        except socket.timeout:  # noqa: UP041 - Python 3.9
            pair["mtu_trouble"] = True
        option = (socket.IPPROTO_IPV6, 24) if sock.family == socket.AF_INET6 else (socket.IPPROTO_IP, 14)
        pair["mtu"] = sock.getsockopt(*option)


def _kind(error):
    """Why a connection failed, in one word."""
    kinds = ((socket.gaierror, "name"), (ConnectionRefusedError, "refused"), (socket.timeout, "timeout"))
    named = [word for sort, word in kinds if isinstance(error, sort)]
    return named[0] if named else "no_route" if error.errno in ROUTE else "other"


def _mtus():
    """MTU of each interface except loopback."""
    by_interface = {}
    for name in sorted(set(os.listdir("/sys/class/net")) - {"lo"}):
        with contextlib.suppress(OSError), open(f"/sys/class/net/{name}/mtu", encoding="ascii") as stream:
            by_interface[name] = int(stream.read())
    return by_interface


if __name__ == "__main__":
    main()
