"""Processes of the product, forked from one that has imported TensorFlow, which takes each of them 3 s of processor time otherwise.

All else is theirs: their process id, parent, session, signals, environment and exit code. That each starts with an interpreter of its own
is proven around the stub worker, in the lab, and by the trainings that go through Ansible.
"""

import ctypes
import importlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tests.project import ROOT
from trainer import backend

MAINS = {"trainer": "trainer.cli", "trainer.supervision": "trainer.supervision.__main__", "control": "control.__main__"}
"""The module with the `main` of `python -m NAME`."""
MODULES = [*backend.MODULES, *MAINS.values(), "control.runs.model", "control.runs.plan", __name__]
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""}
"""What a start script sets."""
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(MODULES)


class Process:
    """What runs `work(*given)` in a session of its own, and writes to the end of a log; the part of `Popen` that tests need."""

    def __init__(self, work: Callable[..., int], given: Sequence[Any], folder: Path, log: Path, environment: Mapping[str, str]):
        os.environ |= ENVIRONMENT
        streams = {"folder": str(folder), "log": str(log), "environment": {**os.environ, **environment}}
        self._process = _FORKS.Process(target=_begin, args=(work, given), kwargs=streams)
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
    """`Popen`, but `python -m MODULE ...` for one of `MAINS` becomes a child of this process, which has its modules already."""

    def _execute_child(self, args, *given):
        if args[1] != "-m" or args[2] not in MAINS:
            super()._execute_child(args, *given)
            return
        environment, pipes = given[5], (given[9:11], given[12:10:-1], given[14:12:-1])
        self.pid = os.fork()
        self._child_created = True
        if not self.pid:
            for number, (own, _) in enumerate(pipes):
                if own != -1:
                    os.dup2(own, number)
            _as_if_executed()
            _end(lambda: _main(args[2], args[3:], environment or {}))
        for own, other in pipes:
            if -1 not in (own, other):
                os.close(own)


def python(words: Sequence[str], folder: Path, log: Path, environment: Mapping[str, str]) -> Process:
    """Start `python WORDS`, which begin with `-m`, for one of `MAINS`."""
    return Process(_main, (words[1], words[2:], {}), folder, log, environment)


def _begin(work: Callable[..., int], given: Sequence[Any], folder: str, log: str, environment: Mapping[str, str]) -> NoReturn:
    multiprocessing.set_start_method(None, force=True)
    os.setsid()
    os.chdir(folder)
    for number, (path, flags) in enumerate([(os.devnull, os.O_RDONLY), *[(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)] * 2]):
        opened = os.open(path, flags, 0o640)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    _end(lambda: work(*given))


def _main(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """What `python -m MODULE ARGUMENTS` does."""
    if environment:
        os.environ.clear()
        os.environ.update(environment)
    sys.argv = [module, *arguments]
    random.seed()
    np.random.seed()
    main = importlib.import_module(MAINS[module]).main
    return main(popen=Fork) if module == "trainer.supervision" else main()


def _end(work: Callable[[], int]) -> NoReturn:
    """End this process with the exit code of `work`, as an interpreter does: TensorFlow takes leave of its peers then."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    try:
        code = work()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    ctypes.pythonapi.Py_Exit(code or 0)


def _as_if_executed() -> None:
    """What `exec` does to a process: no open files but its streams, no handlers of signals."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 65536 else 65536)
    sys.stdin, resource_tracker._resource_tracker._fd = os.fdopen(0, closefd=False), None
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
