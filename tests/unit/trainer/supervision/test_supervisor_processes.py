"""Supervisors as real processes, with real signals; what they decide is tested on a fake clock in test_supervisor.py.

Their workers are a few lines of Python that do as a file says.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from control.remote.worker_files import read_records
from tests.ports import free_ports
from tests.project import await_until
from trainer.common.errors import PREEMPTED
from trainer.host.claims import MARK, SUPERVISED
from trainer.rundir.phases import Phase

ROOT = Path(__file__).parents[4]
LONG_S = 120
WORKER = """
import os, pathlib, signal, sys, threading
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGTERM, lambda *_: os._exit(42))
from trainer.rundir.metrics_log import Metrics
from trainer.host.process import die_with_parent
generation, parent = sys.argv[2], int(sys.argv[4])
die_with_parent(parent)
own, peers = {own!r}, {peers!r}
metrics = Metrics(pathlib.Path(own) / "metrics.jsonl")
metrics.step = 10 * int(generation)
metrics.phase("training")
metrics.heartbeat()
part = f"{{own}}/.up-{{generation}}"
open(part, "w").write(str(os.getpid()))
os.replace(part, f"{{own}}/up-{{generation}}")
def read(folder, name):
    try:
        return int(open(f"{{folder}}/{{name}}-{{generation}}").read())
    except OSError:
        return None
def ended(pid):
    try:
        return open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
while True:
    if {steps}:
        metrics.step += 1
        metrics.heartbeat()
    code = read(own, "do")
    if code is not None:
        os._exit(code)
    for peer in peers:
        up = read(peer, "up")
        # Who ended by an order had it written before.
        if up is not None and ended(up) and read(peer, "do") not in (0, 42):
            os._exit(75)
    threading.Event().wait(0.02)
"""
STANDBY = """
import json, os, sys
own = {own!r}
open(own + "/standby", "w").write(str(os.getpid()))
given = json.loads(open(int(sys.argv[2]), "rb").read())
os.execve(sys.executable, [sys.executable, own + "/worker.py", *given["arguments"]], given["environment"])
"""
PROGRAM = """
import dataclasses, sys
from tests.fake_clock import Hurried
from trainer.supervision import __main__ as entry
real = entry.supervise
# `python -m trainer ARGUMENTS` is the worker's command line: the file stands in for it.
replaced = dict(program=[sys.executable, {worker!r}], worker=[], session=[], standby={standby!r})
entry.supervise = lambda post, **more: real(dataclasses.replace(post, **replaced), Hurried({hurry}), **more)
raise SystemExit(entry.main())
"""
NAMES = ("first", "second", "third")


class Run:
    """Two supervisors, and spares whose time passes `hurry` times as fast; `standby`: each has a process that becomes the next worker."""

    def __init__(self, folder, spares=0, standby=False, hurry=1, **options):
        self.standby, self.hurry = standby, hurry
        self.names = NAMES[: 2 + spares]
        self.folders = [folder / name / "workers" / name for name in self.names]
        self.ports = free_ports(2 + spares)
        recovery = {"max_restarts": 5, "max_restarts_per_hour": 5, "hang": 600, "rejoin_wait": 600, "standby": False, "elastic": False}
        hosts = [
            {"name": name, "address": "127.0.0.1", "port": 1, "direct_port": port, "root": "", "silence": 600}
            for name, port in zip(self.names, self.ports, strict=True)
        ]
        record = {"run": "run", "launch": "l", "recovery": recovery | options, "hosts": hosts[:2], "spares": hosts[2:]}
        secret = secrets.token_hex(32)
        for own in self.folders:
            own.mkdir(parents=True)
            (own.parents[1] / "cluster.json").write_text(json.dumps(record))
            (own / "secret").write_text(secret)
            peers = [str(one) for one in self.folders if one != own]
            (own / "standby.py").write_text(STANDBY.format(own=str(own)))
            (own / "worker.py").write_text(WORKER.format(own=str(own), peers=peers, steps=standby))
        self.processes = [self.begin(rank) for rank in range(2 + spares)]

    def begin(self, rank):
        own = self.folders[rank]
        standby = [sys.executable, str(own / "standby.py")] if self.standby else []
        hurry = self.hurry if rank == 2 else 1
        argv = [sys.executable, "-c", PROGRAM.format(worker=str(own / "worker.py"), standby=standby, hurry=hurry)]
        argv += ["train", "--run", str(own.parents[1]), "--host", own.name]
        with (own / "log").open("ab") as log:
            return subprocess.Popen(argv, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)})

    def await_generation(self, number):
        for rank, own in enumerate(self.folders[:2]):
            self.until(rank, (own / f"up-{number}").is_file, f"generation {number}")

    def await_phase(self, rank, phase):
        self.until(rank, lambda: phase in self.phases(rank), phase)

    def until(self, rank, condition, what):
        """Wait for what a supervisor does; fail if it ends before."""
        await_until(condition, LONG_S, what, 0.02, ended=lambda: None if self.processes[rank].poll() is None else self.log(rank))

    def worker(self, rank, generation):
        return int((self.folders[rank] / f"up-{generation}").read_text())

    def do(self, rank, generation, code):
        part = self.folders[rank] / ".do"
        part.write_text(str(code))
        part.replace(self.folders[rank] / f"do-{generation}")

    def ends(self):
        return [process.wait(LONG_S) for process in self.processes]

    def log(self, rank):
        return (self.folders[rank] / "log").read_text()

    def phases(self, rank):
        path = self.folders[rank] / "metrics.jsonl"
        return [record["phase"] for record in read_records(path) if record["kind"] == "phase"] if path.exists() else []


@pytest.fixture
def begin(tmp_path):
    runs = []

    def start(**options):
        runs.append(Run(tmp_path, **options))
        runs[-1].await_generation(1)
        return runs[-1]

    yield start
    for run in runs:
        for process in run.processes:
            process.kill()
            process.wait()


def test_a_killed_supervisor_ends_its_worker_and_returns(begin):
    run = begin()
    worker = run.worker(1, 1)
    run.processes[1].kill()
    run.processes[1].wait()
    await_until(lambda: not Path(f"/proc/{worker}").exists(), LONG_S, "the end of its worker", 0.02)
    run.processes[1] = run.begin(1)
    run.await_generation(2)
    for rank in (0, 1):
        run.do(rank, 2, 0)
    assert run.ends() == [0, 0]
    assert not any((own / SUPERVISED).exists() for own in run.folders)
    assert "rank 1 (second) was lost with its supervisor, or its host restarted" in run.log(0)


def await_standby(run, rank, other_than=""):
    path = run.folders[rank] / "standby"
    run.until(rank, lambda: path.is_file() and path.read_text() not in ("", other_than), "the standby")
    return path.read_text()


def test_the_standby_becomes_the_next_worker(begin):
    """If it is still there; the others of the run's end are ended."""
    run = begin(standby=True)
    first = [await_standby(run, rank) for rank in (0, 1)]
    os.kill(run.worker(1, 1), signal.SIGKILL)
    run.await_generation(2)
    assert [str(run.worker(rank, 2)) for rank in (0, 1)] == first
    second = [await_standby(run, rank, first[rank]) for rank in (0, 1)]
    os.kill(int(second[0]), signal.SIGKILL)
    os.kill(run.worker(1, 2), signal.SIGKILL)
    run.await_generation(3)
    assert str(run.worker(0, 3)) != second[0]
    assert str(run.worker(1, 3)) == second[1]
    last = [await_standby(run, rank, second[rank]) for rank in (0, 1)]
    for rank in (0, 1):
        run.do(rank, 3, 0)
    assert run.ends() == [0, 0]
    assert not any(Path(f"/proc/{pid}").exists() for pid in last)


def test_a_stopped_spare_learns_of_the_end(begin):
    """Else it would wait for minutes."""
    run = begin(spares=1, hurry=20, elastic=True, elastic_wait=2, min_workers=1)
    run.await_phase(2, Phase.STANDING_BY)
    os.kill(run.processes[2].pid, signal.SIGSTOP)
    run.do(1, 1, 1)
    assert run.processes[1].wait(LONG_S) == 1
    os.kill(run.processes[2].pid, signal.SIGCONT)
    assert run.ends() == [75, 1, 75]
    assert "error: the others have ended the run after a fault; nothing starts again after that" in run.log(2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_supervisor_that_waits_hears_a_signal(number, begin):
    """Its handler breaks off whatever the main thread waits for; somebody at the terminal leaves the mark with it."""
    run = begin()
    run.processes[1].kill()
    run.await_phase(0, Phase.REJOINING)
    if number == signal.SIGTERM:
        (run.folders[0] / MARK).touch()
    run.processes[0].send_signal(number)
    assert run.processes[0].wait(LONG_S) == PREEMPTED
    assert not (run.folders[0] / SUPERVISED).exists()
    assert (run.folders[0] / MARK).exists()


def test_two_signals_mean_that_the_host_goes_down(begin):
    """Also the tmux server ends; the other host was not signalled, and waits."""
    run = begin()
    for number in (signal.SIGHUP, signal.SIGTERM):
        run.processes[1].send_signal(number)
    assert run.processes[1].wait(LONG_S) == PREEMPTED
    assert run.phases(1)[-1] == Phase.DOWN
    run.await_phase(0, Phase.REJOINING)
    run.processes[1] = run.begin(1)
    run.await_generation(2)
    for rank in (0, 1):
        run.do(rank, 2, 0)
    assert run.ends() == [0, 0]
    assert "was lost with its supervisor, or its host restarted; all workers start again" in run.log(0)


def test_a_session_ended_by_hand_ends_its_worker(begin):
    """The mark says that its end is wanted."""
    run = begin()
    workers = [run.worker(rank, 1) for rank in (0, 1)]
    for rank in (0, 1):
        (run.folders[rank] / MARK).touch()
        run.processes[rank].send_signal(signal.SIGHUP)
    assert run.ends() == [PREEMPTED, PREEMPTED]
    ends = [json.loads((own / "exit.json").read_text()) for own in run.folders]
    assert [(end["host"], end["rank"], end["exit_code"]) for end in ends] == [("first", 0, PREEMPTED), ("second", 1, PREEMPTED)]
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
