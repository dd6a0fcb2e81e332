"""Children are real processes; each a few lines of Python."""

import os
import signal
import subprocess
import sys

import pytest

from tests.project import await_until
from trainer.supervision.child import Child, Patience, Pulse

PATIENT = Patience(silence=60.0, hang=60.0)


def begin(tmp_path, code):
    return Child([sys.executable, "-c"], [code], os.environ, tmp_path / "metrics.jsonl")


@pytest.mark.parametrize(("code", "expected"), [("raise SystemExit(75)", 75), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_exit_codes_are_those_of_a_shell(tmp_path, code, expected):
    assert begin(tmp_path, code).wait(PATIENT) == expected


def test_a_child_without_heartbeats_is_ended(tmp_path):
    child = begin(tmp_path, "import time; time.sleep(600)")
    assert child.wait(Patience(silence=0.3, hang=60.0)) == 137
    assert child.why.startswith("gave no sign of life for ")


def test_a_child_that_is_no_longer_wanted_is_ended(tmp_path):
    child = begin(tmp_path, "import time; time.sleep(600)")
    assert child.wait(PATIENT, lambda _: "lost its terminal") == 137
    assert child.why == "lost its terminal"


def test_a_stopped_child_is_ended(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    child = begin(tmp_path, f"import os, signal; open({str(metrics)!r}, 'w').write('x'); os.kill(os.getpid(), signal.SIGSTOP)")
    assert child.wait(Patience(silence=0.5, hang=60.0)) == 137
    assert child.why


HANGING = """
import faulthandler, signal, sys, time
faulthandler.register(signal.SIGUSR1, all_threads=True, file=open({stacks!r}, "w"))
def stuck():
    with open({metrics!r}, "ab", buffering=0) as stream:
        while True:
            stream.write(b'{{"kind": "heartbeat", "phase": "training", "step": 12}}\\n')
            time.sleep(0.05)
stuck()
"""


def test_a_child_that_lives_but_makes_no_step_writes_its_stacks_and_is_ended(tmp_path):
    stacks, metrics = tmp_path / "stacks", tmp_path / "metrics.jsonl"
    child = begin(tmp_path, HANGING.format(stacks=str(stacks), metrics=str(metrics)))
    assert child.wait(Patience(silence=60.0, hang=0.5)) == 137
    assert child.why.startswith("made no step for ")
    assert "in stuck" in stacks.read_text()
    assert (child.pulse.step, child.pulse.phase) == (12, "training")


def test_progress_is_read_from_the_end_of_the_records(tmp_path):
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


def test_how_a_worker_ended_is_what_it_said_last(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.touch()
    pulse, ends = Pulse(path), []
    for phase, note in (("ended", "CANCELLED"), ("training", "epoch 1"), ("ended", "SIGTERM while joining"), ("ended", "PREEMPTED")):
        with path.open("a") as stream:
            stream.write(f'{{"t": 1.0, "kind": "phase", "phase": "{phase}", "note": "{note}"}}\n')
        pulse.look()
        ends.append(pulse.end)
    assert ends == ["CANCELLED", "", "SIGTERM while joining", "PREEMPTED"]


def test_long_steps_are_no_hang(tmp_path, monkeypatch):
    """A run whose steps took 10 s hangs after 200 s, one whose steps took 0.1 s after a minute, none after more than the limit."""
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    path = tmp_path / "metrics.jsonl"
    path.touch()
    pulse = Pulse(path)
    for number, at in enumerate((0.0, 10.0, 20.0)):
        clock[0] = at
        with path.open("a") as stream:
            stream.write(f'{{"phase": "training", "step": {number}}}\n')
        pulse.look()
    for seconds, hangs in ((199.0, False), (201.0, True)):
        clock[0] = 20.0 + seconds
        assert pulse.hangs(600.0) is hangs
    clock[0] = 20.0 + 101.0
    assert pulse.hangs(100.0)


def test_a_child_dies_with_its_parent_even_if_that_is_killed(tmp_path):
    inner = (
        "import os, time; from trainer.supervision.child import die_with_parent; die_with_parent(os.getppid()); "
        "print('up', flush=True); time.sleep(600)"
    )
    outer = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {inner!r}]); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert parent.stdout.readline() == "up\n"
        parent.send_signal(signal.SIGKILL)
    await_until(lambda: not _runs(pid), 60, "the end of the child")


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stream:
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
