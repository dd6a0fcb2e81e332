"""Supervisors as real processes, with real signals: what only they show. Their workers are a few lines of Python that do as a file says.

What supervisors decide is tested on a fake clock in test_supervisor.py; that runs survive killed supervisors, signals of a host that goes
down and frozen workers, with real processes in `tests/contract/test_recovery.py`.
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
own, peer = {own!r}, {peer!r}
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
    if read(own, "do") is not None:
        os._exit(0)
    up = read(peer, "up")
    # Who ended by an order had it written before.
    if up is not None and ended(up) and read(peer, "do") is None:
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
from trainer.supervision import __main__ as entry
real = entry.supervise
# `python -m trainer ARGUMENTS` is the worker's command line: the file stands in for it.
replaced = dict(program=[sys.executable, {worker!r}], worker=[], session=[], standby={standby!r})
entry.supervise = lambda post, **more: real(dataclasses.replace(post, **replaced), **more)
raise SystemExit(entry.main())
"""
NAMES = ("first", "second")


class Run:
    """Two supervisors; `standby`: each has a process that becomes the next worker."""

    def __init__(self, folder, standby=False):
        self.standby = standby
        self.folders = [folder / name / "workers" / name for name in NAMES]
        recovery = {"max_restarts": 5, "max_restarts_per_hour": 5, "hang": 600, "rejoin_wait": 600, "standby": False, "elastic": False}
        hosts = [
            {"name": name, "address": "127.0.0.1", "port": 1, "direct_port": port, "root": "", "silence": 600}
            for name, port in zip(NAMES, free_ports(2), strict=True)
        ]
        record, secret = {"run": "run", "launch": "l", "recovery": recovery, "hosts": hosts}, secrets.token_hex(32)
        for own, other in zip(self.folders, reversed(self.folders), strict=True):
            own.mkdir(parents=True)
            (own.parents[1] / "cluster.json").write_text(json.dumps(record))
            (own / "secret").write_text(secret)
            (own / "standby.py").write_text(STANDBY.format(own=str(own)))
            (own / "worker.py").write_text(WORKER.format(own=str(own), peer=str(other), steps=standby))
        self.processes = [self.begin(own) for own in self.folders]

    def begin(self, own):
        standby = [sys.executable, str(own / "standby.py")] if self.standby else []
        argv = [sys.executable, "-c", PROGRAM.format(worker=str(own / "worker.py"), standby=standby)]
        argv += ["train", "--run", str(own.parents[1]), "--host", own.name]
        with (own / "log").open("ab") as log:
            return subprocess.Popen(argv, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)})

    def await_generation(self, number):
        for rank, own in enumerate(self.folders):
            self.until(rank, (own / f"up-{number}").is_file, f"generation {number}")

    def until(self, rank, condition, what):
        """Wait for what a supervisor does; fail if it ends before."""
        log = self.folders[rank] / "log"
        await_until(condition, LONG_S, what, 0.02, ended=lambda: None if self.processes[rank].poll() is None else log.read_text())

    def worker(self, rank, generation):
        return int((self.folders[rank] / f"up-{generation}").read_text())

    def phases(self, rank):
        return [record["phase"] for record in read_records(self.folders[rank] / "metrics.jsonl") if record["kind"] == "phase"]


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
    for own in run.folders:
        (own / "part").write_text("0")
        (own / "part").replace(own / "do-3")
    assert [process.wait(LONG_S) for process in run.processes] == [0, 0]
    assert not any(Path(f"/proc/{pid}").exists() for pid in last)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_supervisor_that_waits_hears_a_signal(number, begin):
    """Its handler breaks off whatever the main thread waits for; somebody at the terminal leaves the mark with it."""
    run = begin()
    run.processes[1].kill()
    run.until(0, lambda: Phase.REJOINING in run.phases(0), Phase.REJOINING)
    if number == signal.SIGTERM:
        (run.folders[0] / MARK).touch()
    run.processes[0].send_signal(number)
    assert run.processes[0].wait(LONG_S) == PREEMPTED
    assert not (run.folders[0] / SUPERVISED).exists()
    assert (run.folders[0] / MARK).exists()
