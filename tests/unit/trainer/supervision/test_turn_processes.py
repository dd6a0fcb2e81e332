"""Queued workers as real processes on this machine, with a `tmux` of a few lines that knows the sessions that a test names.

Whose turn it is: test_turn.py, on a fake clock.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import await_until
from tests.unit.trainer.supervision.queued import Hosts
from trainer.common.errors import FAILED, PREEMPTED, RESTART
from trainer.host import claims
from trainer.host.claims import MARK, SUPERVISED
from trainer.rundir.phases import Phase

ROOT = Path(__file__).parents[4]
TMUX = """#!/bin/sh
case "$*" in
  *list-sessions*) cat {folder}/sessions ;;
  *) echo "$*" >> {folder}/commands ;;
esac
"""
PROGRAM = """
import sys
from tests.fake_clock import Hurried
from trainer.supervision import queue
sys.exit(queue.main(Hurried({hurry})))
"""
WORKER = """
import os, signal
open("started.part", "w").write(" ".join(map(str, signal.pthread_sigmask(signal.SIG_BLOCK, ()))))
os.rename("started.part", "started")
"""


class Processes(Hosts):
    """Workers as processes."""

    def __init__(self, folder):
        super().__init__(folder)
        self.processes = []
        (folder / "bin").mkdir()
        (folder / "bin/tmux").write_text(TMUX.format(folder=folder))
        (folder / "bin/tmux").chmod(0o755)

    def begin(self, run, rank, number, arguments=("-c", WORKER), hurry=20):
        """Start one whose time passes `hurry` times as fast."""
        folder, ports = self.path(run, rank).parents[1], zip(self.ports, self.direct, self.servers, self.roots, strict=True)
        hosts = [
            {"name": f"host{one}", "address": "127.0.0.1", "port": port, "direct_port": direct, "server_port": server, "root": str(root)}
            for one, (port, direct, server, root) in enumerate(ports)
        ]
        record = {"run": run, "launch": "l", "ticket": self.ticket(run, number), "hosts": hosts}
        (folder / "cluster.json").write_text(json.dumps(record))
        words = [str(folder), f"host{rank}", *arguments]
        environment = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        argv = [sys.executable, "-c", PROGRAM.format(hurry=hurry), *words]
        self.processes.append(subprocess.Popen(argv, cwd=self.path(run, rank), env=environment))
        return self.processes[-1]

    def started(self, run, rank):
        return (self.path(run, rank) / "started").exists()

    def have_started(self, run):
        await_until(lambda: self.started(run, 0) and self.started(run, 1), 60, f"{run} starts", 0.02)

    def is_told(self, run, rank, note):
        await_until(lambda: self.notes(run, rank)[-1:] == [note], 60, f"{run} on {rank} says {note}", 0.02)


@pytest.fixture
def hosts(tmp_path):
    made = Processes(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


def test_on_free_hosts_a_run_starts(hosts):
    """Once both workers are there; it keeps its claims."""
    first = hosts.queue("a", 0, 1)
    await_until(hosts.claim(0).exists, 60, "it claims its port")
    hosts.is_told("a", 0, "next; waits for host1")
    assert not hosts.started("a", 0)
    hosts.queue("a", 1, 1)
    hosts.have_started("a")
    assert first.wait(60) == 0
    for rank in range(2):
        assert not hosts.entry("a", rank, 1).exists()
        assert claims.read_claim(str(hosts.claim(rank))) == hosts.content("a", rank)
        # Neither a supervisor follows that would go on with it, nor are signals blocked for the worker.
        assert not (hosts.path("a", rank) / SUPERVISED).exists()
        assert (hosts.path("a", rank) / "started").read_text() == ""


def test_for_a_supervisor_its_file_stays(hosts):
    """That which starts the session after a restart of the host; when it is started again after its turn, with its history."""
    supervisor = ["-c", "", "trainer.supervision"]
    for rank in range(2):
        hosts.queue("a", rank, 1, arguments=supervisor)
    for process in hosts.processes:
        assert process.wait(60) == 0
    for rank in range(2):
        written = json.loads((hosts.path("a", rank) / SUPERVISED).read_text())
        assert written["session"] == claims.session_command(hosts.session("a", rank), str(hosts.path("a", rank)))
    kept, notes = hosts.path("a", 0) / SUPERVISED, hosts.notes("a", 0)
    kept.write_text('{"history": 1}')
    assert hosts.begin("a", 0, 1, arguments=supervisor).wait(60) == 0
    assert kept.read_text() == '{"history": 1}'
    assert hosts.notes("a", 0) == notes


@pytest.mark.parametrize(
    ("mark", "ticket", "claim", "code"),
    [(True, True, False, PREEMPTED), (False, False, False, FAILED), (False, False, True, 0)],
    ids=["cancelled", "taken back", "a script after its turn"],
)
def test_what_does_not_wait_again_leaves_nothing(hosts, mark, ticket, claim, code):
    """When it is started again: else it would be for ever."""
    hosts.queue("a", 0, 1, begin=False)
    (hosts.path("a", 0) / SUPERVISED).write_text("{}")
    if mark:
        (hosts.path("a", 0) / MARK).touch()
    if not ticket:
        hosts.entry("a", 0, 1).unlink()
    if claim:
        hosts.claim(0).write_text(json.dumps(hosts.content("a", 0)))
    assert hosts.begin("a", 0, 1).wait(60) == code
    assert hosts.started("a", 0) == claim
    assert not hosts.entry("a", 0, 1).exists()
    assert not (hosts.path("a", 0) / SUPERVISED).exists()


@pytest.mark.parametrize(
    ("signals", "code", "returns"),
    [
        ([signal.SIGTERM], 128 + signal.SIGTERM, False),
        ([signal.SIGHUP], RESTART, True),
        ([signal.SIGSTOP, signal.SIGHUP, signal.SIGTERM, signal.SIGCONT], PREEMPTED, False),
    ],
    ids=["its session starts it again", "without tmux it returns in a session", "the host goes down, both are there when it goes on"],
)
def test_a_signal_while_it_waits_leaves_its_place(hosts, signals, code, returns):
    """A worker that was ended alone is started again: the others would wait for it for ever."""
    process = hosts.queue("a", 0, 1)
    hosts.is_told("a", 0, "next; waits for host1")
    for number in signals:
        process.send_signal(number)
    assert process.wait(60) == code
    commands = hosts.folder / "commands"
    expected = [" ".join(claims.session_command(hosts.session("a", 0), str(hosts.path("a", 0)))[1:])] if returns else []
    assert (commands.read_text().splitlines() if commands.exists() else []) == expected
    assert hosts.entry("a", 0, 1).exists()
    hosts.begin("a", 0, 1)
    hosts.queue("a", 1, 1)
    hosts.have_started("a")


def test_it_keeps_its_place_through_a_restart(hosts):
    """Its host goes down, and comes back."""
    hosts.occupy("now", 0)
    process = hosts.queue("a", 0, 1, hurry=1)
    hosts.is_told("a", 0, "behind run now")
    process.terminate()
    last = hosts.path("a", 0) / "metrics.jsonl"
    await_until(lambda: json.loads(last.read_text().splitlines()[-1])["phase"] == Phase.DOWN, 60, "it says so", 0.02)
    process.terminate()
    assert process.wait(60) == PREEMPTED
    assert hosts.entry("a", 0, 1).exists()
    assert (hosts.path("a", 0) / SUPERVISED).exists()
    # The host is back.
    hosts.end_session("now", 0)
    hosts.begin("a", 0, 1)
    hosts.queue("a", 1, 1)
    hosts.have_started("a")
