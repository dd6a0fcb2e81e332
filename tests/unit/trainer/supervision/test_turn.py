"""Queued workers as real processes on this machine, with a `tmux` of a few lines that knows the sessions that a test names."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_ports
from tests.project import await_until
from trainer import claims
from trainer.errors import FAILED, PREEMPTED, RESTART
from trainer.supervision.child import MARK
from trainer.supervision.supervisor import DOWN, FILE
from trainer.supervision.turn import QUEUED
from trainer.telemetry import read_records

ROOT = Path(__file__).parents[4]
TMUX = """#!/bin/sh
case "$*" in
  *list-sessions*) cat {folder}/sessions ;;
  *) echo "$*" >> {folder}/commands ;;
esac
"""
PROGRAM = """
import sys
from trainer.supervision import turn
turn.LOOK_S, turn.MEET_S, turn.HANGUP_S, turn.RETURN_S, turn.DOWN_S = 0.05, 0.05, 0.2, {returns}, {down}
sys.exit(turn.main())
"""
WORKER = """
import os, signal, time
open("started.part", "w").write(" ".join(map(str, signal.pthread_sigmask(signal.SIG_BLOCK, ()))))
os.rename("started.part", "started")
"""


class Hosts:
    """Two hosts, each with a queue; runs have a worker on each of them."""

    def __init__(self, folder, returns=60.0, down=60.0):
        self.folder, self.returns, self.down, self.processes = folder, returns, down, []
        (folder / "bin").mkdir()
        (folder / "bin/tmux").write_text(TMUX.format(folder=folder))
        (folder / "bin/tmux").chmod(0o755)
        (folder / "sessions").touch()
        self.roots = [folder / "one", folder / "two"]
        self.ports, self.direct, self.servers = (free_ports(2) for _ in range(3))
        for root in self.roots:
            for part in (claims.CLAIMS, claims.QUEUE):
                (root / part).mkdir(parents=True)
        self.secrets = {}

    def path(self, run, rank):
        return self.roots[rank] / "runs" / run / "workers" / f"host{rank}"

    def entry(self, run, rank, number):
        return Path(claims.place(str(self.roots[rank]), self.ticket(run, number), self.ports[rank]))

    def claim(self, rank):
        return self.roots[rank] / claims.CLAIMS / f"{self.ports[rank]}.json"

    def ticket(self, run, number):
        return f"{number:013d}-{run.encode().hex():0>8}"

    def content(self, run, rank):
        return {"run": run, "launch": "l", "session": f"{run}-w{rank}", "folder": str(self.path(run, rank))}

    def add_session(self, run, rank):
        with (self.folder / "sessions").open("a") as stream:
            stream.write(f"{run}-w{rank}\n")

    def end_session(self, run, rank):
        path = self.folder / "sessions"
        path.write_text("".join(line + "\n" for line in path.read_text().split() if line != f"{run}-w{rank}"))

    def queue(self, run, rank, number, begin=True, arguments=("-c", WORKER)):
        """A worker as `worker_claim` and `run_worker.sh` start it; `number` is its place in time."""
        own = self.path(run, rank)
        own.mkdir(parents=True)
        (own / "secret").write_text(self.secrets.setdefault(run, secrets.token_hex(32)))
        self.entry(run, rank, number).write_text(json.dumps(self.content(run, rank)))
        self.add_session(run, rank)
        return self.begin(run, rank, number, arguments) if begin else None

    def begin(self, run, rank, number, arguments=("-c", WORKER)):
        named = {
            "root": self.roots[rank],
            "folder": self.path(run, rank),
            "run": run,
            "launch": "l",
            "session": f"{run}-w{rank}",
            "ticket": self.ticket(run, number),
            "rank": rank,
            "hosts": "host0,host1",
            "peers": ",".join(f"127.0.0.1:{port}" for port in self.direct),
            "port": self.ports[rank],
            "ports": f"{self.ports[rank]},{self.direct[rank]},{self.servers[rank]}",
        }
        words = [*(f"--{name}={value}" for name, value in named.items()), "--", *arguments]
        environment = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        program = PROGRAM.format(returns=self.returns, down=self.down)
        process = subprocess.Popen([sys.executable, "-c", program, *words], cwd=self.path(run, rank), env=environment)
        self.processes.append(process)
        return process

    def started(self, run, rank):
        return (self.path(run, rank) / "started").exists()

    def have_started(self, run):
        await_until(lambda: self.started(run, 0) and self.started(run, 1), 20, f"{run} starts")

    def notes(self, run, rank):
        records = read_records(self.path(run, rank) / "metrics.jsonl")
        return [record["note"] for record in records if record["kind"] == "phase" and record["phase"] == QUEUED]

    def is_told(self, run, rank, note):
        await_until(lambda: self.notes(run, rank)[-1:] == [note], 20, f"{run} on {rank} says {note}, not {self.notes(run, rank)}")


@pytest.fixture
def hosts(tmp_path):
    made = Hosts(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


def test_on_free_hosts_a_run_starts_once_both_workers_are_there_and_keeps_its_claims(hosts):
    first = hosts.queue("a", 0, 1)
    await_until(hosts.claim(0).exists, 20, "it claims its port")
    hosts.is_told("a", 0, "next; waits for host1")
    assert not hosts.started("a", 0)
    hosts.queue("a", 1, 1)
    hosts.have_started("a")
    assert first.wait(10) == 0
    for rank in range(2):
        assert not hosts.entry("a", rank, 1).exists()
        assert claims.read(str(hosts.claim(rank))) == hosts.content("a", rank)
        # Neither a supervisor follows that would go on with it, nor are signals blocked for the worker.
        assert not (hosts.path("a", rank) / FILE).exists()
        assert (hosts.path("a", rank) / "started").read_text() == ""


def test_for_a_supervisor_the_file_stays_that_starts_the_session_after_a_restart(hosts):
    for rank in range(2):
        hosts.queue("a", rank, 1, arguments=["-m", "trainer.supervision", "--help"])
    for process in hosts.processes:
        assert process.wait(20) == 0
    for rank in range(2):
        written = json.loads((hosts.path("a", rank) / FILE).read_text())
        assert written["session"] == claims.session_command(f"a-w{rank}", str(hosts.path("a", rank)))


def test_it_waits_for_the_run_that_has_the_host_and_then_for_older_tickets(hosts):
    for rank in range(2):
        hosts.claim(rank).write_text(json.dumps(hosts.content("now", rank)))
        hosts.add_session("now", rank)
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


def test_an_older_ticket_that_comes_later_goes_first_and_no_two_runs_wait_for_each_other(hosts):
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


def test_a_run_that_returns_after_a_restart_of_its_host_keeps_it(hosts):
    for rank in range(2):
        own = hosts.path("now", rank)
        own.mkdir(parents=True)
        (own / FILE).touch()
        hosts.claim(rank).write_text(json.dumps(hosts.content("now", rank)))
        hosts.queue("a", rank, 1)
        hosts.is_told("a", rank, "behind run now")
    (hosts.path("now", 0) / "exit.json").touch()
    (hosts.path("now", 1) / MARK).touch()
    hosts.have_started("a")


def test_not_for_ever(tmp_path):
    hosts = Hosts(tmp_path, returns=0.5)
    for rank in range(2):
        own = hosts.path("now", rank)
        own.mkdir(parents=True)
        (own / FILE).touch()
        hosts.claim(rank).write_text(json.dumps(hosts.content("now", rank)))
        hosts.queue("a", rank, 1)
    hosts.have_started("a")
    for process in hosts.processes:
        process.wait(10)


def test_which_workers_return(tmp_path, monkeypatch):
    claim = {"folder": str(tmp_path)}
    assert not claims.returns(claim)
    (tmp_path / FILE).touch()
    assert claims.returns(claim)
    monkeypatch.chdir(tmp_path)
    assert not claims.returns({}), "versions before wrote no folder"
    assert not claims.returns({"folder": "."})
    (tmp_path / MARK).touch()
    assert not claims.returns(claim)


def test_a_claim_of_an_earlier_version_does_not_keep_a_free_host(hosts):
    for rank in range(2):
        claim = {name: value for name, value in hosts.content("old", rank).items() if name != "folder"}
        hosts.claim(rank).write_text(json.dumps(claim))
        hosts.queue("a", rank, 1)
    hosts.have_started("a")


def test_without_an_answer_of_tmux_no_run_counts_as_ended(hosts):
    for rank in range(2):
        hosts.claim(rank).write_text(json.dumps(hosts.content("now", rank)))
        hosts.add_session("now", rank)
        hosts.queue("a", rank, 1)
        hosts.is_told("a", rank, "behind run now")
    kept = (hosts.folder / "sessions").read_text()
    (hosts.folder / "sessions").write_text("")
    for rank in range(2):
        hosts.is_told("a", rank, "behind tmux, which does not list this session")
        assert hosts.content("now", rank) == claims.read(str(hosts.claim(rank)))
    (hosts.folder / "sessions").write_text(kept)
    for rank in range(2):
        hosts.is_told("a", rank, "behind run now")
        hosts.end_session("now", rank)
    hosts.have_started("a")


def test_another_program_on_a_port_is_named_and_awaited(hosts):
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("", hosts.direct[1]))
        stranger.listen()
        for rank in range(2):
            hosts.queue("a", rank, 1)
        await_until(lambda: bool(hosts.notes("a", 1)), 20, "it says for what it waits")
        (note,) = hosts.notes("a", 1)
        assert f"(pid {os.getpid()}, " in note
        assert note.endswith(f"which holds port {hosts.direct[1]}")
    hosts.have_started("a")


def test_what_others_put_into_the_folders_is_no_claim(hosts):
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


def test_a_claim_of_a_worker_that_waits_again_does_not_stop_an_older_run(hosts):
    """It was next when it was killed, and an older run came before it was back: neither may wait for the other."""
    process = hosts.queue("young", 0, 2)
    hosts.is_told("young", 0, "next; waits for host1")
    process.kill()
    process.wait()
    for rank in range(2):
        hosts.queue("old", rank, 1)
    hosts.is_told("old", 0, "behind run young")
    hosts.begin("young", 0, 2)
    hosts.have_started("old")


def test_what_cannot_be_written_is_tried_again(hosts):
    hosts.claim(1).mkdir()
    for rank in range(2):
        hosts.queue("a", rank, 1)
    await_until(lambda: "Is a directory" in "".join(hosts.notes("a", 1)), 20, "it says why it waits")
    hosts.claim(1).rmdir()
    hosts.have_started("a")


def test_the_port_of_a_parameter_server_is_awaited_as_well(hosts):
    with socket.create_server(("", hosts.servers[0])):
        for rank in range(2):
            hosts.queue("a", rank, 1)
        await_until(lambda: f"which holds port {hosts.servers[0]}" in "".join(hosts.notes("a", 0)), 20, "it names the port")
    hosts.have_started("a")


def test_a_worker_that_somebody_ends_alone_is_started_again(tmp_path):
    """Its session starts it again after such an exit code; the others would wait for it for ever."""
    hosts = Hosts(tmp_path, down=0.2)
    process = hosts.queue("a", 0, 1)
    hosts.is_told("a", 0, "next; waits for host1")
    process.terminate()
    assert process.wait(10) == 128 + signal.SIGTERM
    assert hosts.entry("a", 0, 1).exists()
    hosts.begin("a", 0, 1)
    hosts.queue("a", 1, 1)
    hosts.have_started("a")


def test_a_cancelled_run_that_is_started_again_gives_up_its_place(hosts):
    for rank in range(2):
        hosts.queue("a", rank, 1, begin=False)
        (hosts.path("a", rank) / FILE).write_text("{}")
        (hosts.path("a", rank) / MARK).touch()
        assert hosts.begin("a", rank, 1).wait(10) == PREEMPTED
        assert not hosts.started("a", rank)
        assert not hosts.entry("a", rank, 1).exists()
        assert not (hosts.path("a", rank) / FILE).exists()


def test_a_run_that_was_taken_back_does_not_start(hosts):
    hosts.queue("a", 0, 1, begin=False)
    hosts.entry("a", 0, 1).unlink()
    (hosts.path("a", 0) / FILE).write_text("{}")
    assert hosts.begin("a", 0, 1).wait(10) == FAILED
    assert not hosts.started("a", 0)
    assert not (hosts.path("a", 0) / FILE).exists()


def test_a_script_that_is_started_again_after_its_turn_is_not_started_for_ever(hosts):
    hosts.queue("a", 0, 1, begin=False)
    hosts.entry("a", 0, 1).unlink()
    hosts.claim(0).write_text(json.dumps(hosts.content("a", 0)))
    (hosts.path("a", 0) / FILE).write_text("{}")
    assert hosts.begin("a", 0, 1).wait(10) == 0
    assert not (hosts.path("a", 0) / FILE).exists()


@pytest.mark.parametrize("where", ["in the queue", "while it waits for the others"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_is_cancelled(hosts, where, number):
    if where == "in the queue":
        hosts.claim(0).write_text(json.dumps(hosts.content("now", 0)))
        hosts.add_session("now", 0)
    process = hosts.queue("a", 0, 1)
    hosts.is_told("a", 0, "behind run now" if where == "in the queue" else "next; waits for host1")
    if number == signal.SIGTERM:
        (hosts.path("a", 0) / MARK).touch()
    process.send_signal(number)
    assert process.wait(10) == PREEMPTED
    assert not hosts.entry("a", 0, 1).exists()
    assert not (hosts.path("a", 0) / FILE).exists()
    left = claims.read(str(hosts.claim(0)))
    assert left == (hosts.content("now", 0) if where == "in the queue" else None)


def test_when_its_host_goes_down_it_keeps_its_place(hosts):
    process = hosts.queue("a", 0, 1)
    hosts.is_told("a", 0, "next; waits for host1")
    process.terminate()
    last = hosts.path("a", 0) / "metrics.jsonl"
    await_until(lambda: json.loads(last.read_text().splitlines()[-1])["phase"] == DOWN, 20, "it says so")
    process.terminate()
    assert process.wait(10) == PREEMPTED
    assert hosts.entry("a", 0, 1).exists()
    assert (hosts.path("a", 0) / FILE).exists()
    # The host is back.
    hosts.begin("a", 0, 1)
    hosts.queue("a", 1, 1)
    hosts.have_started("a")


def test_without_its_tmux_server_it_returns_in_a_new_session(hosts):
    process = hosts.queue("a", 0, 1)
    hosts.is_told("a", 0, "next; waits for host1")
    process.send_signal(signal.SIGHUP)
    assert process.wait(10) == RESTART
    (command,) = (hosts.folder / "commands").read_text().splitlines()
    assert command == " ".join(claims.session_command("a-w0", str(hosts.path("a", 0)))[1:])


def test_both_signals_mean_that_the_host_goes_down(hosts):
    process = hosts.queue("a", 0, 1)
    hosts.is_told("a", 0, "next; waits for host1")
    # Both are there when it goes on.
    for number in (signal.SIGSTOP, signal.SIGHUP, signal.SIGTERM, signal.SIGCONT):
        process.send_signal(number)
    assert process.wait(10) == PREEMPTED
    assert not (hosts.folder / "commands").exists()


def test_one_that_is_killed_takes_its_place_again(hosts):
    process = hosts.queue("a", 0, 1)
    hosts.is_told("a", 0, "next; waits for host1")
    process.kill()
    process.wait()
    hosts.begin("a", 0, 1)
    hosts.queue("a", 1, 1)
    hosts.have_started("a")


def test_after_its_turn_a_supervisor_that_is_started_again_has_its_history(hosts):
    hosts.queue("a", 0, 1, begin=False)
    hosts.entry("a", 0, 1).unlink()
    hosts.claim(0).write_text(json.dumps(hosts.content("a", 0)))
    kept = hosts.path("a", 0) / FILE
    kept.write_text('{"history": 1}')
    assert hosts.begin("a", 0, 1, arguments=["-m", "trainer.supervision", "--help"]).wait(10) == 0
    assert kept.read_text() == '{"history": 1}'
    assert not hosts.notes("a", 0)
