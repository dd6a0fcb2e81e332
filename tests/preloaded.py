"""Python processes forked from one that has imported TensorFlow, which takes each of them 3 s of processor time otherwise.

All else is theirs: their process id, parent, session, signals, environment and exit code. That the product's start with an interpreter of
their own is proven around the stub worker, in the lab, and by the trainings that go through Ansible.
"""

import ctypes
import gc
import multiprocessing
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import numpy as np

from tests.project import ROOT, SLOWEST
from trainer import backend
from trainer.supervision import __main__ as supervision

FORKED = ("trainer", "control")
"""`python -m` of these is forked where the product starts it, too."""
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""}
ONE_THREAD = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
"""For programs so small that threads cost more than they save."""
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([*backend.MODULES, "trainer.cli", "control.runs.model", "control.runs.plan", __name__])


class Process:
    """What runs `work(*given)` in a session of its own; the part of `Popen` that tests need."""

    def __init__(
        self, work: Callable[..., int], given: Sequence[Any], folder: Path, streams: Sequence[Path], environment: Mapping[str, str]
    ):
        """Start it in a folder; it reads the first of three `streams`, and writes to the end of the others."""
        with mock.patch.dict(os.environ, ENVIRONMENT):
            begun = (work, given, str(folder), [*map(str, streams)], {**os.environ, **environment})
            self._process = _FORKS.Process(target=_begin, args=begun)
            self._process.start()
        self.pid = self._process.pid

    def wait(self, timeout: float | None = None) -> int:
        """The exit code."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return self._process.exitcode

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Fork(subprocess.Popen):
    """`Popen`, but `python -m MODULE ...` for one of `FORKED` becomes a child of this process, which has its modules already."""

    def _execute_child(self, args, *given):
        if args[1] != "-m" or args[2] not in FORKED:
            super()._execute_child(args, *given)
            return
        environment, pipes = given[5], (given[9:11], given[12:10:-1], given[14:12:-1])
        self.pid = os.fork()
        self._child_created = True
        if not self.pid:
            for number, (own, _) in enumerate(pipes):
                if own != -1:
                    os.dup2(own, number)
            _as_if_executed(environment)
            _end(python, args[1:])
        for own, other in pipes:
            if -1 not in (own, other):
                os.close(own)


def python(kind: str, program: str, *arguments: str) -> int:
    """What `python -c PROGRAM ...` or `python -m MODULE ...` does; supervisors fork their workers."""
    sys.argv = [kind, *arguments]
    sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder and folder not in sys.path]
    random.seed()
    np.random.seed()
    if kind == "-c":
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
    elif program == "trainer.supervision":
        return supervision.main(popen=Fork)
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    return 0


def by_itself(folder: Path, *words: str, **environment: str) -> str:
    """What a program prints that `python` runs to a good end, in a folder."""
    streams = [Path(os.devnull), folder / "printed", folder / "log"]
    process = Process(python, words, folder, streams, {**ONE_THREAD, **environment})
    assert process.wait(60 * SLOWEST) == 0, (folder / "log").read_text()
    return (folder / "printed").read_text()


def _begin(work: Callable[..., int], given: Sequence[Any], folder: str, streams: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    # What was there before is neither looked through nor freed object by object at the end, which takes 0.8 s of processor time.
    gc.freeze()
    multiprocessing.set_start_method(None, force=True)
    os.setsid()
    os.chdir(folder)
    for number, (path, flags) in enumerate(zip(streams, [os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT | os.O_APPEND] * 2], strict=True)):
        opened = os.open(path, flags, 0o640)
        os.dup2(opened, number)
        os.close(opened)
    _replace_environment(environment)
    _end(work, given)


def _end(work: Callable[..., int], given: Sequence[Any]) -> NoReturn:
    """End this process with the exit code of `work`, as an interpreter does: TensorFlow then disconnects from its peers."""
    sys.stdin = os.fdopen(0, closefd=False)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    try:
        code = work(*given)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    ctypes.pythonapi.Py_Exit(code)


def _as_if_executed(environment: Mapping[str, str] | None) -> None:
    """What `exec` does to a process: no open files but its streams, no handlers of signals, its own environment."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    resource_tracker._resource_tracker._fd = None
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if environment is not None:
        _replace_environment(environment)


def _replace_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    # Is chosen anew: by TMPDIR.
    tempfile.tempdir = None
