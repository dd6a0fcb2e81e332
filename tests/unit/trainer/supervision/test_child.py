"""Children: real processes of a few lines of Python, or fake ones on a fake clock."""

import os
import signal
import subprocess
import sys

import pytest

from tests.fake_clock import FakeProcess
from tests.project import await_until
from trainer.common.errors import ClusterError
from trainer.host.process import STACKS
from trainer.rundir.metrics_log import Metrics
from trainer.supervision.child import LOOK_S, STACKS_S, Child, Patience, Pulse

PATIENT = Patience(silence=60.0, hang=60.0)


def begin(tmp_path, code):
    return Child([sys.executable, "-c"], [code], os.environ, tmp_path / "metrics.jsonl")


def pretend(tmp_path, clock, process=None):
    """A child on a fake clock."""
    return Child(["worker"], [], {}, tmp_path / "metrics.jsonl", None, clock, lambda *_, **__: process or FakeProcess(clock))


@pytest.mark.parametrize("refusal", ["", "the environment has changed: A"])
def test_a_child_is_forked_unless_refused(tmp_path, clock, refusal):
    """It is started anew where it can't be forked, with the reason."""
    made, orders = {"forked": FakeProcess(clock, 1), "new": FakeProcess(clock, 2)}, []

    class Forks:
        def fork(self, *order):
            orders.append(order)
            if refusal:
                raise ClusterError(refusal)
            return made["forked"]

    def popen(argv, env):
        orders.append((argv, env))
        return made["new"]

    child = Child(["worker"], ["train"], {"A": "1"}, tmp_path / "metrics.jsonl", Forks(), clock, popen)
    child.signal(signal.SIGTERM)
    assert (child.refusal, child.pid) == (refusal, 2 if refusal else 1)
    assert orders == [(["train"], {"A": "1"}), (["worker", "train"], {"A": "1"})][: 2 if refusal else 1]
    assert [one.signals for one in made.values()] == ([[], [signal.SIGTERM]] if refusal else [[signal.SIGTERM], []])


def test_a_child_without_heartbeats_is_ended(tmp_path, clock):
    child, began = pretend(tmp_path, clock), clock.monotonic()
    assert child.wait(Patience(silence=60.0, hang=600.0)) == 137
    assert child.why == "gave no heartbeat for 60 s"
    assert 60 < clock.monotonic() - began <= 60 + LOOK_S


def test_silence_on_a_read_only_disk_is_none(tmp_path, clock, monkeypatch):
    """Heartbeats are files: the child lives as long as its process."""
    process = FakeProcess(clock)
    child = pretend(tmp_path, clock, process)
    monkeypatch.setattr("trainer.supervision.child.is_read_only", lambda path: path == tmp_path / "metrics.jsonl")
    began = clock.monotonic()

    def look(_):
        if clock.monotonic() - began > 90.0:
            process.end(0)
        return ""

    assert (child.wait(Patience(silence=60.0, hang=600.0), look), child.why) == (0, "")


def test_a_child_no_longer_wanted_is_ended(tmp_path, clock):
    child = pretend(tmp_path, clock)
    assert child.wait(PATIENT, lambda _: "lost its terminal") == 137
    assert child.why == "lost its terminal"


def test_a_stopped_child_is_ended(tmp_path):
    """SIGKILL ends a process that SIGSTOP keeps from all else."""
    metrics = tmp_path / "metrics.jsonl"
    child = begin(tmp_path, f"import os, signal; open({str(metrics)!r}, 'w').write('x'); os.kill(os.getpid(), signal.SIGSTOP)")
    assert child.wait(PATIENT, lambda pulse: "is stopped" if _state(child.pid) == "T" else "") == 137
    assert child.why == "is stopped"


class Stuck(FakeProcess):
    """A worker that lives, and writes the same step again and again."""

    def __init__(self, clock, metrics):
        super().__init__(clock)
        self._beats = Metrics(metrics)
        self._beats.step = 12
        self._beats.phase("training")

    def wait(self, timeout=None):
        self._beats.heartbeat()
        return super().wait(timeout)


def test_a_child_without_progress_is_ended(tmp_path, clock):
    """First the signal for the stacks, then time to write them, then the end."""
    process = Stuck(clock, tmp_path / "metrics.jsonl")
    child, began = pretend(tmp_path, clock, process), clock.monotonic()
    assert child.wait(Patience(silence=60.0, hang=300.0)) == 137
    assert child.why == "made no step for 300 s (the stacks of its threads are in its log)"
    assert process.signals == [STACKS, signal.SIGKILL]
    assert 300 + STACKS_S < clock.monotonic() - began < 303 + STACKS_S
    assert (child.pulse.step, child.pulse.phase) == (12, "training")


def test_progress_is_read_from_the_last_records(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"t": 1, "kind": "phase", "phase": "starting", "note": ""}\n')
    pulse = Pulse(path)
    pulse.look()
    assert (pulse.step, pulse.phase) == (0, "starting"), "what an earlier worker wrote does not count"
    with path.open("a") as stream:
        stream.write('{"kind": "phase", "phase": "training", "note": "epoch 1"}\n' + '{"kind": "steps", "step": 8}\n' * 2000)
        stream.write('{"kind": "heartbeat", "phase": "training", "step": 16}\n{"kind": "ste')
    pulse.look()
    assert (pulse.step, pulse.phase) == (16, "training")


def test_a_workers_end_is_its_last_word(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.touch()
    pulse, ends = Pulse(path), []
    for phase, note in (("ended", "CANCELLED"), ("training", "epoch 1"), ("ended", "SIGTERM while joining"), ("ended", "PREEMPTED")):
        with path.open("a") as stream:
            stream.write(f'{{"t": 1.0, "kind": "phase", "phase": "{phase}", "note": "{note}"}}\n')
        pulse.look()
        ends.append(pulse.end)
    assert ends == ["CANCELLED", "", "SIGTERM while joining", "PREEMPTED"]


def test_long_steps_are_no_hang(tmp_path, clock):
    """A run whose steps took 10 s hangs after 200 s, one whose steps took 0.1 s after a minute, none after more than the limit."""
    path = tmp_path / "metrics.jsonl"
    path.touch()
    pulse, began = Pulse(path, clock), clock.monotonic()
    for number in range(3):
        clock.advance(began + 10.0 * number - clock.monotonic())
        with path.open("a") as stream:
            stream.write(f'{{"phase": "training", "step": {number}}}\n')
        pulse.look()
    for seconds, hangs in ((199.0, False), (201.0, True)):
        clock.advance(began + 20.0 + seconds - clock.monotonic())
        assert pulse.hangs(600.0) is hangs
    assert pulse.hangs(100.0)


def test_a_child_dies_with_its_killed_parent(tmp_path):
    inner = (
        "import os, signal; from trainer.host.process import die_with_parent; die_with_parent(os.getppid()); "
        "print('up', flush=True); signal.pause()"
    )
    outer = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {inner!r}]); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert parent.stdout.readline() == "up\n"
        parent.send_signal(signal.SIGKILL)
    await_until(lambda: _state(pid) in ("Z", ""), 60, "the end of the child", 0.01)


def _state(pid):
    """The letter of a process' state; empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stream:
            return stream.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""
