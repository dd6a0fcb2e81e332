"""Processes that become a worker: real ones, most of them without TensorFlow."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import await_until
from trainer.supervision.child import Standby
from trainer.supervision.standby_process import LEAST_NICE

ROOT = Path(__file__).parents[4]
STATE = """
import ctypes, json, os, resource, signal, sys, threading, time
death = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(death))
mask = os.umask(0)
# A thread that has been joined may be in the kernel for a moment longer.
deadline = time.monotonic() + 10
while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < deadline:
    pass
state = dict(
    arguments=sys.argv[1:],
    environment=dict(os.environ),
    folder=os.getcwd(),
    umask=mask,
    limits=[resource.getrlimit(one) for one in range(16)],
    nice=os.getpriority(os.PRIO_PROCESS, 0),
    policy=os.sched_getscheduler(0),
    cores=sorted(os.sched_getaffinity(0)),
    oom=open("/proc/self/oom_score_adj").read(),
    handlers={one.name: str(signal.getsignal(one)).split(" at ")[0] for one in signal.Signals},
    blocked=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    files=sorted((one, os.readlink(f"/proc/self/fd/{one}")) for one in ("0", "1", "2")),
    open=sum(os.path.exists(f"/proc/self/fd/{one}") for one in range(3, 200)),
    threads=[thread.name for thread in threading.enumerate()],
    tasks=len(os.listdir("/proc/self/task")),
    death=death.value,
    group=os.getpgrp(),
    name=__name__,
)
with open(sys.argv[1], "w") as stream:
    json.dump(state, stream)
"""
STANDS_BY = """
import os, sys
from trainer.supervision import standby_process
standby_process.MODULES, standby_process.LEAST_NICE = {modules}, {nice}
standby_process.runpy.run_module = lambda name, **options: exec({state!r}, {{"__name__": options["run_name"]}})
standby_process.main()
"""


@pytest.fixture(autouse=True)
def interruptible():
    """What is started in the background of a shell ignores SIGINT, and so would all that these tests start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def begin(modules=("decimal",), state=STATE, environment=None, nice=0):
    """A process that stands by; with the lowest priority, as it has, it would wait for the other tests."""
    program = STANDS_BY.format(modules=modules, state=state, nice=nice)
    return Standby([sys.executable, "-c", program], {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})})


def test_nothing_tells_it_from_a_process_that_was_started_anew(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ONLY": "later"}
    fresh, taken = tmp_path / "fresh", tmp_path / "taken"
    bond = "from trainer.host.process import die_with_parent; die_with_parent(os.getppid())"
    subprocess.run([sys.executable, "-c", f"import os; {bond}\n{STATE}", str(fresh), "ä b"], env=environment, check=True)
    process = begin(environment={"ONLY": "before", "NEVER": "later"}).become([str(taken), "ä b"], environment)
    assert process.wait(120) == 0
    expected, state = (json.loads(path.read_text()) for path in (fresh, taken))
    assert expected.pop("arguments") == [str(fresh), "ä b"]
    assert state.pop("arguments") == [str(taken), "ä b"]
    assert state == expected
    assert state["death"] == signal.SIGKILL


def test_it_takes_little_until_then_and_goes_first(tmp_path):
    (tmp_path / "slow_import.py").write_text(
        "import os, threading, time\n"
        f"open({str(tmp_path / 'nice')!r}, 'w').write(str(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))\n"
    )
    standby = begin(("slow_import",), environment={"PYTHONPATH": f"{ROOT}:{tmp_path}"}, nice=LEAST_NICE)
    await_until((tmp_path / "nice").is_file, 120, "the import")
    await_until(lambda: (tmp_path / "nice").read_text() == str(LEAST_NICE), 120, "the import")
    assert Path(f"/proc/{standby.pid}/oom_score_adj").read_text().strip() >= "500"
    assert os.getpriority(os.PRIO_PROCESS, standby.pid) == os.getpriority(os.PRIO_PROCESS, 0)
    standby.end()
    assert not Path(f"/proc/{standby.pid}").exists()


def test_it_ends_when_its_supervisor_closes_the_pipe(tmp_path):
    standby = begin()
    os.close(standby._writer)
    assert standby._process.wait(120) == 0


def test_one_that_is_gone_does_not_become_a_worker(tmp_path):
    standby = begin()
    os.kill(standby.pid, signal.SIGKILL)
    standby._process.wait()
    assert standby.become(["train"], dict(os.environ)) is None


def test_one_that_does_not_listen_is_ended(tmp_path):
    standby = begin()
    os.kill(standby.pid, signal.SIGSTOP)
    # More than a pipe holds.
    assert standby.become(["train"], {"LONG": "x" * 2**20}) is None
    assert not Path(f"/proc/{standby.pid}").exists()


def test_an_import_that_fails_ends_it_with_the_reason(capfd):
    standby = begin(("no_such_module",))
    assert standby._process.wait(120) == 75
    assert "No module named 'no_such_module'" in capfd.readouterr().err
    assert standby.become(["train"], dict(os.environ)) is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_ends_a_session_ends_it_without_a_word(number, capfd):
    standby = begin()
    await_until(lambda: _catches(standby.pid) == 0, 120, "its start")
    os.kill(standby.pid, number)
    assert standby._process.wait(120) == -number
    assert capfd.readouterr().err == ""


def _catches(pid):
    """Whether a process has a handler for SIGINT, as Python has from its start."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return int(line.split()[1], 16) >> (signal.SIGINT - 1) & 1


def test_with_tensorflow_it_waits_with_one_thread_and_becomes_the_trainer(capfd):
    # As templates/run_worker.sh.j2 has it.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "OPENBLAS_NUM_THREADS": "1"}
    program = "from trainer.supervision import standby_process; standby_process.LEAST_NICE = 0; standby_process.main()"
    standby = Standby([sys.executable, "-c", program], environment)
    await_until(lambda: "_pywrap_tensorflow" in Path(f"/proc/{standby.pid}/maps").read_text(), 120, "TensorFlow")
    await_until(lambda: len(os.listdir(f"/proc/{standby.pid}/task")) == 1, 120, "the end of the import")
    process = standby.become(["steptime", "--help"], environment)
    assert process.wait(120) == 0
    assert "usage: python -m trainer steptime" in capfd.readouterr().out
