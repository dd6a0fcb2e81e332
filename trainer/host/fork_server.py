"""A process that imports TensorFlow once and forks workers: the import takes most of the time of a worker's start.

A launch starts such a server on each host while its plan is made, in a tmux session of its own and before the trainer's code is there
(`python -c`, standard library only). A supervisor starts one beside its worker for restarts, if `recovery.standby` asks for that. Each
client holds one connection, over which it orders one process after another and receives their exit codes; a process is killed when its
client ends. A server that is asked to end (`ENDS`) waits for its processes, which may have a training state to save. A forked worker
differs from one that was started anew in its command line, its parent, and a session of its own. The first order also says which
modules of the trainer to import for all processes: a launch starts the server before the trainer is on the host.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.abc
import importlib.machinery
import json
import os
import random
import runpy
import selectors
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NAME = "lockstep-preload-"
"""Beginning of the names of servers with a socket, and of their tmux sessions."""
KEY = "LOCKSTEP_FORK_SERVER"
"""Environment variable of a supervisor with the key of its host's server."""
WAIT_S, LINGER_S, LOOK_S = 60.0, 600.0, 10.0
"""Seconds that a server waits for its first client, and for another after its last; between two looks at this host's memory meanwhile."""
LEAST_FREE_MB = 1024
"""Without a client, a server ends when less memory is available."""
LEAST_NICE, OOM, FIRST_TO_GO = 19, "/proc/self/oom_score_adj", 500
"""Beside a training worker: only spare processor time; without a process: the kernel's first choice when memory is short."""
LARGEST = 1 << 20
"""Bytes of an order."""
ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Signals that ask for the server's end; a host that goes down sends the first two."""
OPENMP = (b"libgomp", b"libomp", b"libiomp")
OF_ONE_PROCESS = {
    *("TF_CONFIG", "TMPDIR", "PATH", "PYTHONPATH", "PWD", "OLDPWD", "PS1", "SHLVL", "_", "TMUX", "TMUX_PANE", "OMP_NUM_THREADS", KEY),
    # Variables that tmux takes from whoever starts a session.
    *("DISPLAY", "KRB5CCNAME", "MSYSTEM", "SSH_ASKPASS", "SSH_AUTH_SOCK", "SSH_AGENT_PID", "SSH_CONNECTION", "WINDOWID", "XAUTHORITY"),
}
"""Environment variables that no import of TensorFlow reads."""


def folder() -> str:
    """This user's folder of sockets, which nobody else may enter; OSError if somebody else made it."""
    path = os.path.join(os.environ.get("TMUX_TMPDIR") or "/tmp", f"lockstep-{os.getuid()}")  # noqa: S108 - as tmux does
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} is not a folder that only this user may enter")
    return path


def socket_path(name: str) -> str:
    """The socket of a server."""
    return os.path.join(folder(), name)


class Server:
    """Forks a process for each order, and sends its client the process' exit code."""

    def __init__(
        self, environment: Mapping[str, str], score: int, listener: socket.socket | None = None, client: socket.socket | None = None
    ):
        """Take environment and score (`_score`) from before the import, and a socket that listens for clients, or the only client."""
        self._environment, self._listener, self._places, self._score = environment, listener, _stamps(), score
        self._processes: dict[socket.socket, int] = {}
        """Each client's process; 0 while it has none."""
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        for one in (self._woken, self._waker):
            one.setblocking(False)
        self._code: str | None = None
        """Folders (`PYTHONPATH`) from which orders' modules were imported; None before the first order."""
        self._stale = ""
        """Why this process can no longer fork what would be like one that was started anew; empty if it can."""
        self._end_asked = 0
        """The signal, one of `ENDS`, that came while a process ran."""
        self._handlers = {number: signal.signal(number, self._end) for number in ENDS}
        """Earlier handlers of these signals."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._reap)
        if listener is not None:
            self._selector.register(listener, selectors.EVENT_READ, self._accept)
        if client is not None:
            self._admit(client)

    def run(self) -> dict[str, Any] | None:
        """Serve; return in a new process, with its order, and in the server itself, None, once no client is left to serve."""
        deadline = time.monotonic() + WAIT_S
        while self._processes or (self._listener and not self._stale and time.monotonic() < deadline and _free_mb() >= LEAST_FREE_MB):
            self._rate()
            for selected, _ in self._selector.select(None if self._processes else max(0.0, min(LOOK_S, deadline - time.monotonic()))):
                order = selected.data(selected.fileobj)
                if order is not None:
                    return order
                deadline = time.monotonic() + LINGER_S
        return None

    def _end(self, number: int, _: Any) -> None:
        """End by a signal, now or after the last process."""
        self._end_asked = number
        if not any(self._processes.values()):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _rate(self) -> None:
        """Go first when memory is short, unless a process would go, too."""
        _set_score(self._score if any(self._processes.values()) else min(1000, self._score + FIRST_TO_GO))

    def _accept(self, listener: socket.socket) -> None:
        self._admit(listener.accept()[0])

    def _admit(self, client: socket.socket) -> None:
        self._processes[client] = 0
        self._selector.register(client, selectors.EVENT_READ, self._heed)

    def _heed(self, client: socket.socket) -> dict[str, Any] | None:
        """Read a client's order, and return it in the process forked for it."""
        try:
            message, descriptors, _, _ = socket.recv_fds(client, LARGEST, 3)
        except OSError:
            message, descriptors = b"", []
        if not message:
            self._dismiss(client)
            return None
        order: dict[str, Any] = json.loads(message)
        self._stale = self._stale or self._difference(order)
        reason = self._stale or self._other_version(order) or self._other_environment(order["environment"])
        if reason:
            _tell(client, {"refused": reason})
        elif _listens(client) and self._fork(client, descriptors):
            return order
        for descriptor in descriptors:
            os.close(descriptor)
        return None

    def _fork(self, client: socket.socket, descriptors: Sequence[int]) -> bool:
        """Fork a process for a client; True in that process."""
        with _ends_waiting():
            try:
                pid = os.fork()
            except OSError as error:
                _tell(client, {"refused": f"it could not be forked: {error.strerror}"})
                return False
            if pid:
                self._processes[client] = pid
                _tell(client, {"pid": pid})
            else:
                _set_score(self._score)
                self._leave(descriptors)
        return not pid

    def _other_version(self, order: dict[str, Any]) -> str:
        return "" if _code(order) == self._code else "it has imported another version of the trainer"

    def _other_environment(self, wanted: Mapping[str, str]) -> str:
        """How a process' environment differs from this one's in what an import may read; empty if it does not."""
        names = self._environment.keys() | wanted.keys()
        with open("/proc/self/maps", "rb") as maps:
            loaded = maps.read()
        openmp = any(name in loaded for name in OPENMP)
        checked = names - (OF_ONE_PROCESS - {"OMP_NUM_THREADS"} if openmp else OF_ONE_PROCESS)
        changed = sorted(name for name in checked if self._environment.get(name) != wanted.get(name))
        return f"the environment has changed: {', '.join(changed)}" if changed else ""

    def _difference(self, order: dict[str, Any]) -> str:
        """Import the first order's modules; return how this process then differs from any that is started anew, or an empty text."""
        if self._end_asked:
            return "it was asked to end"
        if self._places != _stamps():
            return "packages were installed or removed since its import"
        if self._code is None:
            self._code = _code(order)
            if failure := _failure(self._code, order["modules"]):
                return failure
        return "the import left threads behind" if len(os.listdir("/proc/self/task")) > 1 else ""

    def _leave(self, descriptors: Sequence[int]) -> None:
        """In a new process: leave the server's files and signals, and take the client's streams."""
        signal.set_wakeup_fd(-1)
        for one, handler in {**self._handlers, signal.SIGCHLD: signal.SIG_DFL}.items():
            signal.signal(one, handler)
        os.setsid()
        self._selector.close()
        for own in (self._woken, self._waker, *([self._listener] if self._listener else []), *self._processes):
            own.close()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)

    def _reap(self, woken: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            woken.recv(4096)
        # Clients get all exit codes before this process ends.
        with _ends_waiting():
            for client, pid in self._processes.items():
                ended, status = os.waitpid(pid, os.WNOHANG) if pid else (0, 0)
                if ended:
                    self._processes[client] = 0
                    self._rate()
                    _tell(client, {"code": os.waitstatus_to_exitcode(status)})
        self._end_if_asked()

    def _dismiss(self, client: socket.socket) -> None:
        """Kill the process of a client that has gone."""
        pid = self._processes.pop(client)
        self._selector.unregister(client)
        client.close()
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._end_if_asked()

    def _end_if_asked(self) -> None:
        if self._end_asked:
            self._end(self._end_asked, None)


@contextlib.contextmanager
def _ends_waiting() -> Iterator[None]:
    """Let signals that ask for the end wait; in a process that is forked meanwhile, too."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)


def _code(order: dict[str, Any]) -> str:
    """Folders from which an order's process imports first."""
    return str(order["environment"].get("PYTHONPATH", ""))


def _failure(code: str, modules: Sequence[str]) -> str:
    """Import modules from folders; return why that fails, or an empty text."""
    _put_first(code)
    try:
        import_modules(modules)
    except Exception as error:
        return f"the import failed: {error}"
    return ""


def _put_first(path: str) -> None:
    """Let imports look first where `PYTHONPATH` says."""
    first = [entry for entry in path.split(os.pathsep) if entry]
    sys.path[:] = [*first, *(entry for entry in sys.path if entry not in first)]


def _stamps() -> dict[str, int]:
    """When a package was last installed or removed in each folder of packages."""
    return {entry: os.stat(entry).st_mtime_ns for entry in sys.path if entry.endswith("-packages") and os.path.isdir(entry)}


def _score() -> int:
    """Addition to the score by which the kernel chooses a process to kill."""
    with contextlib.suppress(OSError, ValueError), open(OOM, encoding="ascii") as score:
        return int(score.read())
    return 0


def _set_score(value: int) -> None:
    with contextlib.suppress(OSError), open(OOM, "w", encoding="ascii") as score:
        score.write(str(value))


def _free_mb() -> float:
    with open("/proc/meminfo", encoding="ascii") as memory:
        return next(int(line.split()[1]) for line in memory if line.startswith("MemAvailable:")) / 1024


def _tell(client: socket.socket, message: dict[str, Any]) -> None:
    # A client that has gone is dismissed next.
    with contextlib.suppress(OSError):
        client.send(json.dumps(message).encode())


def _listens(client: socket.socket) -> bool:
    """Return whether a client has not lost patience: what it ordered must not start beside what it started instead."""
    try:
        return client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _become(order: dict[str, Any], before: Mapping[str, str]) -> None:
    """Run a module as `python -m` does; its arguments end with its parent's process id. `before`: this environment before the import."""
    os.chdir(order["folder"])
    os.umask(order["umask"])
    # What imports set stays.
    set_by_imports = {name: value for name, value in os.environ.items() if before.get(name) != value}
    os.environ.clear()
    os.environ.update(order["environment"] | set_by_imports)
    # To be chosen anew, by TMPDIR.
    tempfile.tempdir = None
    _put_first(os.environ.get("PYTHONPATH", ""))
    sys.argv = [order["module"], *order["arguments"], "--parent", str(os.getppid())]
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    runpy.run_module(order["module"], run_name="__main__", alter_sys=True)


class _LateModule(types.ModuleType):
    """A module that is executed when one of its names is used: TensorFlow looks at all modules' files when it traces."""

    def __getattr__(self, name: str) -> Any:
        """Execute it; only for names that it does not have yet."""
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        self.__class__ = types.ModuleType  # type: ignore[assignment]
        spec: Any = self.__spec__
        spec.loader.late.exec_module(self)
        return getattr(self, name)


class _LateLoader(importlib.abc.Loader):
    def __init__(self, late: importlib.abc.Loader):
        self.late = late

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """A module that is not executed yet."""
        return _LateModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing yet."""


class _Late(importlib.abc.MetaPathFinder):
    """Finds modules that are executed late: Keras imports these for a gallery of pictures, a fifth of its time with TensorFlow."""

    MODULES = ("matplotlib.pyplot", "matplotlib.patches")

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The module's usual spec, with another loader."""
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target) if fullname in self.MODULES else None
        if spec is not None and spec.loader is not None:
            spec.loader = _LateLoader(spec.loader)
        return spec


def import_modules(names: Sequence[str]) -> None:
    """Import modules in as little time as possible."""
    late = _Late()
    sys.meta_path.insert(0, late)
    # Importing creates only long-lived objects; scanning them repeatedly takes a third of its processor time.
    gc.disable()
    try:
        for name in names:
            importlib.import_module(name)
        # Not scanned later, either, which would copy the pages that forked processes share.
        gc.freeze()
    finally:
        gc.enable()
        sys.meta_path.remove(late)


def _beside_a_worker(modules: Sequence[str], parent: int, score: int) -> None:
    """Import with spare processor time only, and end with the parent."""
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    _set_score(min(1000, score + FIRST_TO_GO))

    def patiently() -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST_NICE)
            import_modules(modules)
        except BaseException:
            # No worker may find what is half imported.
            traceback.print_exc()
            os._exit(1)

    # A nice value belongs to a thread, and only root may lower it again: it ends with this thread.
    thread = threading.Thread(target=patiently)
    thread.start()
    thread.join()
    # It may be in the kernel for a moment longer, as one that an import has left behind.
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):
        time.sleep(0.001)


def main(where: str, modules: Sequence[str], parent: int = 0) -> None:
    """Serve until no client is left.

    Args:
        where: the key of a server with a socket, or the descriptor of a connection to the only client.
        modules: what to import.
        parent: the client's process id, if this process stands by beside its worker.
    """
    # A requested end needs no message.
    interrupted = signal.signal(signal.SIGINT, signal.SIG_DFL)
    before, score = dict(os.environ), _score()
    if parent:
        _beside_a_worker(modules, parent, score)
        server = Server(before, score, client=socket.socket(fileno=int(where)))
    else:
        if _free_mb() < LEAST_FREE_MB:
            return
        _set_score(min(1000, score + FIRST_TO_GO))
        path = socket_path(where)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(path)
        listener.listen()
        import_modules(modules)
        server = Server(before, score, listener)
    order = server.run()
    if order is None:
        return
    signal.signal(signal.SIGINT, interrupted)
    _become(order, before)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[3:], int(sys.argv[2]))
