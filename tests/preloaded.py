"""Python processes forked from one that has imported what takes long: TensorFlow, 3 s of processor time, or Ansible, half a second.

All else is theirs: their process id, session, signals, streams, environment and exit code. That the product's start with an interpreter of
their own is proven by `tests/contract/test_commands.py`, by the workers that commands start, by the trainings that go through Ansible, and
in the lab.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import json
import multiprocessing
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import forkserver, popen_forkserver, reduction, resource_tracker, spawn
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import numpy as np

from tests.project import ROOT
from trainer.supervision import __main__ as supervision
from trainer.worker import backend

FORKED = ("trainer", "control")
"""`python -m` of these is forked where the product starts it, too."""
SERVED = ["control", "serve"]
"""But this goes on without its command."""
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""}
ONE_THREAD = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
"""For programs so small that threads cost more than they save."""
PLAYBOOK = "ansible-playbook"
COMMANDS = ("ansible.cli.playbook", "ansible.executor.task_executor", "ansible.plugins.strategy.linear", "ansible.plugins.callback.default")
PLANNING = (
    "control.__main__",
    "control.runs.planning.plan",
    "control.runs.planning.examine_model",
    "control.runs.tasks.plan",
    "control.runs.tasks.conclude",
)
WORKERS = ("trainer.cli", "trainer.worker.process", "trainer.worker.loop")
_FORKS = multiprocessing.get_context("forkserver")
_PREPARED = spawn.get_preparation_data
_ONE_AT_A_TIME = threading.Lock()
_PATH = [*sys.path]


class Server:
    """A process from which others are forked; it starts with the first of them."""

    def __init__(self, code: Path, modules: Iterable[str]):
        """Import these modules, the project's own from one of its copies."""
        self._code, self._forks = code, forkserver.ForkServer()
        self._forks.set_forkserver_preload(["tests.uncollected", *modules, __name__])

    def popen(self, args: Sequence[str], **settings: Any) -> "Popen":
        """`subprocess.Popen` of `python -c`, `python -m` or `ansible-playbook`."""
        return Popen(args, server=self, **settings)

    def fork(self, *begun: Any) -> multiprocessing.process.BaseProcess:
        """Run `_begin` in a new process."""
        process = _FORKS.Process(target=_begin, args=begun)
        with (
            _ONE_AT_A_TIME,
            mock.patch.object(spawn, "get_preparation_data", _prepared),
            mock.patch.object(popen_forkserver.forkserver, "connect_to_new_process", self._connect),
        ):
            process.start()
        return process

    def _connect(self, descriptors: Sequence[int]) -> tuple[int, int]:
        path = os.pathsep.join(map(str, (self._code, ROOT)))
        # Ansible reads its settings where it is imported.
        with mock.patch.dict(os.environ, {**ENVIRONMENT, "PYTHONPATH": path}), contextlib.chdir(self._code):
            self._forks.ensure_running()
        return self._forks.connect_to_new_process(descriptors)


class _Parent(Server):
    """In a process that a server has forked, that server."""

    def __init__(self) -> None:
        """It runs."""

    def _connect(self, descriptors: Sequence[int]) -> tuple[int, int]:
        return forkserver._forkserver.connect_to_new_process(descriptors)


def _prepared(name: str) -> dict[str, Any]:
    """The preparation data of a new process, without this process' main module, which the new one would import."""
    return {key: value for key, value in _PREPARED(name).items() if not key.startswith("init_main")}


class Popen(subprocess.Popen):
    """A program in a process that a `Server` forks."""

    _process: multiprocessing.process.BaseProcess | None = None

    def __init__(self, args: Sequence[str], *positional: Any, server: Server | None = None, **settings: Any):
        """Start it; the rest as of `subprocess.Popen`."""
        self._server = server
        super().__init__(args, *positional, **settings)

    def _execute_child(self, args, *given):
        assert self._server
        folder, environment, own, session = given[4], given[5], (given[9], given[12], given[14]), given[20]
        streams = [_Stream(number if descriptor == -1 else descriptor) for number, descriptor in enumerate(own)]
        work, words = (ansible, args) if Path(args[0]).name == PLAYBOOK else (python, args[1:])
        environment = dict(os.environ if environment is None else environment)
        self._process = self._server.fork(work, words, streams, str(folder or Path.cwd()), environment, session)
        self.pid, self._child_created = self._process.pid, True
        self._close_pipe_fds(*given[9:15])

    def _internal_poll(self, *_, **__):
        if self._process is None:
            return super()._internal_poll(*_, **__)
        if self.returncode is None:
            self.returncode = self._process.exitcode
        return self.returncode

    def _wait(self, timeout):
        if self._process is None:
            return super()._wait(timeout)
        self._process.join(timeout)
        if self._internal_poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode


class _Stream:
    """A descriptor of this process, which a new one gets under a number of its own."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        return _received, (reduction.DupFd(self._descriptor),)


def _received(passed: Any) -> int:
    return passed.detach()


class Fork(Popen):
    """`subprocess.Popen`, but `python -m MODULE ...` for one of `FORKED` becomes a child of this process, which has its modules already.

    And a playbook is started by the process that forked this one.
    """

    def _execute_child(self, args, *given):
        if [*args[1:4]] == ["-m", "ansible", "playbook"]:
            self._server = _Parent()
            super()._execute_child([PLAYBOOK, *args[4:]], *given)
            return
        if [*args[1:2]] != ["-m"] or args[2] not in FORKED or args[2:4] == SERVED:
            super(Popen, self)._execute_child(args, *given)
            return
        folder, environment, pipes = given[4], given[5], (given[9:11], given[12:10:-1], given[14:12:-1])
        sys.stdout.flush()
        self.pid = os.fork()
        self._child_created = True
        if not self.pid:
            for number, (own, _) in enumerate(pipes):
                if own != -1:
                    os.dup2(own, number)
            if folder:
                os.chdir(folder)
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


def ansible(*words: str) -> int:
    """What `ansible-playbook ...` does, whose plans are made in forked processes."""
    from ansible import constants
    from ansible.cli import playbook

    for setting in constants.config.get_configuration_definitions():
        constants.set_constant(setting, constants.config.get_config_value(setting, variables=vars(constants)))
    # Its forks must not run the exit handlers of the command.
    os.register_at_fork(after_in_child=atexit._clear)
    subprocess.Popen = Fork
    sys.argv = [*words]
    return playbook.main()


def _begin(
    work: Callable[..., int], given: Sequence[str], streams: Sequence[int], folder: str, environment: Mapping[str, str], session: bool
) -> NoReturn:
    multiprocessing.set_start_method(None, force=True)
    # It would start another.
    forkserver._forkserver.ensure_running = lambda: None
    # Inherited objects are not scanned, which would copy all pages, nor freed one by one at the end, which takes 0.8 s.
    gc.freeze()
    gc.enable()
    sys.path[:] = _PATH
    if session:
        os.setsid()
    os.chdir(folder)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    _replace_environment(environment)
    _end(work, given)


def _end(work: Callable[..., int], given: Sequence[str]) -> NoReturn:
    """End this process with the exit code of `work`, as an interpreter does: TensorFlow then disconnects from its peers."""
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0, closefd=False), _output(1, "strict"), _output(2, "backslashreplace")
    try:
        code = work(*given)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    ctypes.pythonapi.Py_Exit(code)


def _output(descriptor: int, errors: str) -> Any:
    return os.fdopen(descriptor, "w", buffering=1, errors=errors, closefd=False)


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
    # To be chosen anew, by TMPDIR.
    tempfile.tempdir = None


@functools.cache
def with_tensorflow(code: Path = ROOT) -> Server:
    """A server of a copy of the project that trains with TensorFlow."""
    return Server(code, [*backend.MODULES, "trainer.cli", "control.runs.planning.examine_model", "control.runs.planning.plan"])


def around_the_stub(code: Path) -> Server:
    """A server of a copy of the project with the stub worker, for commands, too."""
    return Server(code, [*COMMANDS, *PLANNING, *WORKERS])


def start(words: Sequence[str], folder: Path, environment: Mapping[str, str], **streams: Any) -> Popen:
    """`python WORDS` with TensorFlow, in a folder and a session of its own; `streams` as of `subprocess.Popen`."""
    given = {"cwd": folder, "env": {**os.environ, **ENVIRONMENT, **environment}, "start_new_session": True}
    return with_tensorflow().popen([sys.executable, *words], **given, **streams)


def logged(words: Sequence[str], folder: Path, log: Path, environment: Mapping[str, str], stdin: Any = subprocess.DEVNULL) -> Popen:
    """The same; what it prints goes to the end of a file."""
    with log.open("ab") as stream:
        return start(words, folder, environment, stdin=stdin, stdout=stream, stderr=stream)


def run(words: Sequence[str], folder: Path, environment: Mapping[str, str], text: str = "") -> subprocess.CompletedProcess[str]:
    """The same, to its end; `text` is its standard input."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with start(words, folder, environment, **pipes) as process:
        printed = process.communicate(text)
    return subprocess.CompletedProcess(words, process.returncode, *printed)


def printed(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """What a program prints that ends with exit code 0."""
    done = run(words, folder, environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def answer(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Any:
    """What such a program prints in its last line, as JSON."""
    return json.loads(printed(words, folder, environment).splitlines()[-1])
