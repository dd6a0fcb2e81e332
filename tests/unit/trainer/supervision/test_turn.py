"""Whose turn it is: workers of queued runs as threads, on a fake clock, with sessions that a test names.

With real processes and signals: `tests/contract/test_queue.py`.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest

from control.remote.worker_files import read_records
from tests.ports import free_ports
from trainer.common.errors import FAILED, PREEMPTED, RESTART
from trainer.host import claims
from trainer.host.claims import MARK, SUPERVISED
from trainer.rundir.phases import Phase
from trainer.supervision import queue
from trainer.supervision.queue import KILLED, Place, Turn, WaitInterrupt


class Hosts:
    """Two hosts with a queue each, in which runs have a worker on each of them, as a thread: folders, claims, tmux sessions there are."""

    def __init__(self, folder, clock):
        self.folder, self.clock, self.ends, self.commands, self.secrets = folder, clock, {}, [], {}
        (folder / "sessions").touch()
        self.roots = [folder / "one", folder / "two"]
        self.ports, self.direct, self.servers = (free_ports(2) for _ in range(3))
        for root in self.roots:
            for part in (claims.CLAIMS, claims.QUEUE):
                (root / part).mkdir(parents=True)

    def path(self, run, rank):
        return self.roots[rank] / "runs" / run / "workers" / f"host{rank}"

    def entry(self, run, rank, number):
        return Path(claims.place(str(self.roots[rank]), self.ticket(run, number), self.ports[rank]))

    def claim(self, rank):
        return self.roots[rank] / claims.CLAIMS / f"{self.ports[rank]}.json"

    def session(self, run, rank):
        return claims.session_name(run, rank, str(self.roots[rank]))

    def ticket(self, run, number):
        return f"{number:013d}-{run.encode().hex():0>8}"

    def content(self, run, rank):
        return {"run": run, "launch": "l", "session": self.session(run, rank), "folder": str(self.path(run, rank))}

    def add_session(self, run, rank):
        with (self.folder / "sessions").open("a") as stream:
            stream.write(f"{self.session(run, rank)}\n")

    def end_session(self, run, rank):
        path = self.folder / "sessions"
        path.write_text("".join(line + "\n" for line in path.read_text().split() if line != self.session(run, rank)))

    def occupy(self, run, rank):
        """Let a run have a host."""
        self.claim(rank).write_text(json.dumps(self.content(run, rank)))
        self.add_session(run, rank)

    def queue(self, run, rank, number, begin=True):
        """A worker as `worker_claim` and `run_worker.sh` start it; `number` is its place in time."""
        own = self.path(run, rank)
        own.mkdir(parents=True)
        (own / "secret").write_text(self.secrets.setdefault(run, secrets.token_hex(32)))
        self.entry(run, rank, number).write_text(json.dumps(self.content(run, rank)))
        self.add_session(run, rank)
        return self.begin(run, rank, number) if begin else None

    def begin(self, run, rank, number):
        place = Place(
            root=self.roots[rank],
            folder=self.path(run, rank),
            run=run,
            launch="l",
            session=self.session(run, rank),
            ticket=self.ticket(run, number),
            rank=rank,
            port=self.ports[rank],
            hosts=["host0", "host1"],
            peers=[("127.0.0.1", port) for port in self.direct],
            ports=[self.ports[rank], self.direct[rank], self.servers[rank]],
        )
        thread = threading.Thread(target=self._wait, args=[Turn(place, self.clock), run, rank], daemon=True)
        thread.start()
        return thread

    def _wait(self, turn, run, rank):
        with contextlib.suppress(Killed):
            try:
                turn.wait()
                self.ends[run, rank] = "started"
            except WaitInterrupt as interrupt:
                self.ends[run, rank] = turn.leave(interrupt.args[0])

    def kill(self, thread):
        """Kill a worker: it has no time for anything."""
        self.clock.handle(thread, _killed)
        self.clock.join(thread)

    def notes(self, run, rank):
        path = self.path(run, rank) / "metrics.jsonl"
        records = read_records(path) if path.exists() else []
        return [record["note"] for record in records if record["kind"] == "phase" and record["phase"] == Phase.QUEUED]

    def started(self, run, rank):
        return self.ends.get((run, rank)) == "started"

    def have_started(self, run):
        self.clock.until(lambda: self.started(run, 0) and self.started(run, 1), f"{run} starts")

    def is_told(self, run, rank, note):
        self.clock.until(lambda: self.notes(run, rank)[-1:] == [note], f"{run} on {rank} says {note}, not {self.notes(run, rank)}")


class Killed(BaseException):
    """A worker was killed."""


def _killed():
    raise Killed


@pytest.fixture
def hosts(tmp_path, clock, monkeypatch):
    made = Hosts(tmp_path, clock)
    monkeypatch.setattr(claims, "sessions", lambda: set((tmp_path / "sessions").read_text().split()))
    monkeypatch.setattr(claims, "start_session", lambda command: made.commands.append(command) or "")
    return made


def test_it_waits_for_older_tickets(hosts):
    """First for the run that has the host."""
    for rank in range(2):
        hosts.occupy("now", rank)
        hosts.queue("later", rank, 2)
    for rank in range(2):
        hosts.is_told("later", rank, "behind run now")
        hosts.queue("next", rank, 1)
        hosts.is_told("later", rank, "behind run next, which was queued before")
        hosts.is_told("next", rank, "behind run now")
    for rank in range(2):
        hosts.end_session("now", rank)
    hosts.have_started("next")
    for rank in range(2):
        hosts.is_told("later", rank, "behind run next")
        assert not hosts.started("later", rank)
        hosts.end_session("next", rank)
    hosts.have_started("later")


def test_an_older_ticket_goes_first(hosts):
    """Also if it comes later; no two runs wait for each other."""
    hosts.queue("young", 0, 2)
    hosts.queue("old", 1, 1)
    hosts.is_told("young", 0, "next; waits for host1")
    hosts.is_told("old", 1, "next; waits for host0")
    # Now each has what the other needs.
    hosts.queue("young", 1, 2)
    hosts.queue("old", 0, 1)
    hosts.have_started("old")
    for rank in range(2):
        hosts.is_told("young", rank, "behind run old")
        hosts.end_session("old", rank)
    hosts.have_started("young")


@pytest.mark.parametrize("returns", [True, False])
def test_a_run_that_returns_keeps_its_host(hosts, clock, returns):
    """After a restart of the host, but not for ever."""
    began = clock.monotonic()
    for rank in range(2):
        own = hosts.path("now", rank)
        own.mkdir(parents=True)
        (own / SUPERVISED).touch()
        hosts.claim(rank).write_text(json.dumps(hosts.content("now", rank)))
        hosts.queue("a", rank, 1)
        hosts.is_told("a", rank, "behind run now")
    if returns:
        (hosts.path("now", 0) / "exit.json").touch()
        (hosts.path("now", 1) / MARK).touch()
    hosts.have_started("a")
    least = 0 if returns else claims.RETURN_S
    assert least <= clock.monotonic() - began < least + 20


def test_which_workers_return(tmp_path, monkeypatch):
    claim = {"folder": str(tmp_path)}
    assert not claims.returns(claim)
    (tmp_path / SUPERVISED).touch()
    assert claims.returns(claim)
    monkeypatch.chdir(tmp_path)
    assert not claims.returns({}), "versions before wrote no folder"
    assert not claims.returns({"folder": "."})
    (tmp_path / MARK).touch()
    assert not claims.returns(claim)


def test_without_tmux_no_run_counts_as_ended(hosts):
    for rank in range(2):
        hosts.occupy("now", rank)
        hosts.queue("a", rank, 1)
        hosts.is_told("a", rank, "behind run now")
    kept = (hosts.folder / "sessions").read_text()
    (hosts.folder / "sessions").write_text("")
    for rank in range(2):
        hosts.is_told("a", rank, "behind tmux, which does not list this session")
        assert hosts.content("now", rank) == claims.read_claim(str(hosts.claim(rank)))
    (hosts.folder / "sessions").write_text(kept)
    for rank in range(2):
        hosts.is_told("a", rank, "behind run now")
        hosts.end_session("now", rank)
    hosts.have_started("a")


@pytest.mark.parametrize("ports", ["direct", "servers"])
def test_another_program_is_named_and_awaited(hosts, ports):
    """Whichever port of a worker or parameter server it holds."""
    port = getattr(hosts, ports)[1]
    with socket.create_server(("", port)):
        for rank in range(2):
            hosts.queue("a", rank, 1)
        hosts.clock.until(lambda: bool(hosts.notes("a", 1)), "it says for what it waits")
        (note,) = hosts.notes("a", 1)
        assert f"(pid {os.getpid()}, " in note
        assert note.endswith(f"which holds port {port}")
    hosts.have_started("a")


def test_other_files_are_no_claims(hosts):
    queue, locks = (hosts.roots[0] / part for part in (claims.QUEUE, claims.CLAIMS))
    hosts.add_session("evil", 0)
    good = json.dumps(hosts.content("evil", 0))
    ticket = hosts.ticket("evil", 0)
    (hosts.folder / "target").write_text(good)
    (queue / f"{ticket}-1.json").symlink_to(hosts.folder / "target")
    os.mkfifo(queue / f"{ticket}-2.json")
    for number, text in enumerate(
        ("{", "[1]", '{"run": "evil"}', json.dumps({**hosts.content("evil", 0), "folder": 1}), good + " " * 5000)
    ):
        (queue / f"{ticket}-{number + 3}.json").write_text(text)
    for name in ("0-1.json", "evil.json", f"{ticket}.json", f"..{ticket}-1.json", f"{ticket}-1.json\n"):
        (queue / name).write_text(good)
    (locks / "note.json").write_text(good)
    for rank in range(2):
        hosts.queue("a", rank, 1)
    hosts.have_started("a")


def test_a_returned_worker_does_not_stop_older_runs(hosts):
    """It was next when it was killed, and an older run came before it was back: neither may wait for the other."""
    worker = hosts.queue("young", 0, 2)
    hosts.is_told("young", 0, "next; waits for host1")
    hosts.kill(worker)
    for rank in range(2):
        hosts.queue("old", rank, 1)
    hosts.is_told("old", 0, "behind run young")
    hosts.begin("young", 0, 2)
    hosts.have_started("old")


def test_what_cannot_be_written_is_tried_again(hosts):
    hosts.claim(1).mkdir()
    for rank in range(2):
        hosts.queue("a", rank, 1)
    hosts.clock.until(lambda: "Is a directory" in "".join(hosts.notes("a", 1)), "it says why it waits")
    hosts.claim(1).rmdir()
    hosts.have_started("a")


@pytest.mark.parametrize("where", ["in the queue", "while it waits for the others"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_is_cancelled(hosts, where, number):
    if where == "in the queue":
        hosts.occupy("now", 0)
    worker = hosts.queue("a", 0, 1)
    hosts.is_told("a", 0, "behind run now" if where == "in the queue" else "next; waits for host1")
    if number == signal.SIGTERM:
        (hosts.path("a", 0) / MARK).touch()
    hosts.clock.send(worker, number)
    hosts.clock.join(worker)
    assert hosts.ends["a", 0] == PREEMPTED
    assert not hosts.entry("a", 0, 1).exists()
    assert not (hosts.path("a", 0) / SUPERVISED).exists()
    left = claims.read_claim(str(hosts.claim(0)))
    assert left == (hosts.content("now", 0) if where == "in the queue" else None)


@pytest.mark.parametrize(
    ("signals", "code"),
    [
        ([signal.SIGTERM], KILLED),
        ([signal.SIGHUP], RESTART),
        ([signal.SIGTERM, signal.SIGTERM], PREEMPTED),
        ([signal.SIGHUP, signal.SIGTERM], PREEMPTED),
    ],
    ids=["it alone: its session starts it again", "the tmux server", "its host", "its host with the tmux server"],
)
def test_who_is_ended_keeps_its_place(hosts, signals, code):
    """Until it is started again: the others would wait for it for ever. Without the tmux server it starts its session itself."""
    worker = hosts.queue("a", 0, 1)
    hosts.is_told("a", 0, "next; waits for host1")
    for number in signals:
        hosts.clock.send(worker, number)
    hosts.clock.join(worker)
    assert hosts.ends["a", 0] == code
    session = claims.session_command(hosts.session("a", 0), str(hosts.path("a", 0)))
    assert hosts.commands == ([session] if code == RESTART else [])
    assert hosts.entry("a", 0, 1).exists()
    assert (hosts.path("a", 0) / SUPERVISED).exists()
    hosts.begin("a", 0, 1)
    hosts.queue("a", 1, 1)
    hosts.have_started("a")


@pytest.fixture
def main(hosts, monkeypatch):
    """Runs what the session of run `a` on host0 runs: its exit code, and what it becomes, with the signals that are blocked then."""
    mask, umask, became = signal.pthread_sigmask(signal.SIG_BLOCK, ()), os.umask(0o077), []
    ports = zip(hosts.ports, hosts.direct, hosts.servers, hosts.roots, strict=True)
    places = [
        {"name": f"host{rank}", "address": "127.0.0.1", "port": port, "direct_port": direct, "server_port": server, "root": str(root)}
        for rank, (port, direct, server, root) in enumerate(ports)
    ]
    record = {"run": "a", "launch": "l", "ticket": hosts.ticket("a", 1), "hosts": places}

    def become(_, argv):
        became.append((argv[1:], signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        return 0

    def run(*arguments):
        folder = hosts.path("a", 0).parents[1]
        (folder / "cluster.json").write_text(json.dumps(record))
        monkeypatch.setattr(sys, "argv", ["queue", str(folder), "host0", *arguments])
        monkeypatch.setattr(os, "execv", become)
        return queue.main(hosts.clock), became

    yield run
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.umask(umask)


WORKS, SUPERVISES = ["-c", "work"], ["-m", "trainer.supervision"]


@pytest.mark.parametrize("arguments", [WORKS, SUPERVISES])
def test_in_its_turn_it_becomes_the_worker(hosts, main, arguments):
    """It keeps its claim. For a supervisor its file stays: that which starts the session after a restart of the host, with its history."""
    hosts.queue("a", 0, 1, begin=False)
    hosts.queue("a", 1, 1)
    assert main(*arguments) == (0, [(arguments, set())])
    assert not hosts.entry("a", 0, 1).exists()
    assert claims.read_claim(str(hosts.claim(0))) == hosts.content("a", 0)
    kept = hosts.path("a", 0) / SUPERVISED
    assert kept.exists() == (arguments == SUPERVISES)
    if kept.exists():
        assert json.loads(kept.read_text())["session"] == claims.session_command(hosts.session("a", 0), str(hosts.path("a", 0)))
        kept.write_text('{"history": 1}')
        assert main(*arguments)[0] == 0
        assert kept.read_text() == '{"history": 1}'


@pytest.mark.parametrize(
    ("mark", "ticket", "claim", "code"),
    [(True, True, False, PREEMPTED), (False, False, False, FAILED), (False, False, True, 0)],
    ids=["cancelled", "taken back", "a script after its turn"],
)
def test_what_does_not_wait_again_leaves_nothing(hosts, main, mark, ticket, claim, code):
    """When it is started again: else it would be for ever."""
    hosts.queue("a", 0, 1, begin=False)
    (hosts.path("a", 0) / SUPERVISED).write_text("{}")
    if mark:
        (hosts.path("a", 0) / MARK).touch()
    if not ticket:
        hosts.entry("a", 0, 1).unlink()
    if claim:
        hosts.claim(0).write_text(json.dumps(hosts.content("a", 0)))
    assert main(*WORKS) == (code, [(WORKS, set())] if claim else [])
    assert not hosts.entry("a", 0, 1).exists()
    assert not (hosts.path("a", 0) / SUPERVISED).exists()
