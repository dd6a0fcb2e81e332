"""Processes that fork workers, and the supervisor's side of their sockets: real ones, most of them without TensorFlow."""

import contextlib
import gc
import inspect
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.project import await_until
from tests.unit.samples import ROOT
from trainer.common.errors import ClusterError
from trainer.host import fork_server
from trainer.supervision import forked
from trainer.supervision.forked import ForkServer
from trainer.worker.backend import LIBRARIES

KEY = "key"
PROGRAM = Path(fork_server.__file__).read_text(encoding="utf-8")
MAIN = '\nif __name__ == "__main__":'
TRAINER = "import sys\nexec(sys.argv[1])\n"
"""What is `python -m trainer` here."""
BOND = "import ctypes, os; ctypes.CDLL(None).prctl(1, 9); os.getppid() == int(sys.argv[-1]) or sys.exit('another parent')\n"
"""As a worker's, to its parent."""
PAUSE = f"{BOND}import signal; signal.pause()"
STATE = """
import ctypes, gc, json, os, resource, signal, sys, tempfile, threading, time
death = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(death))
mask = os.umask(0)
# A thread that has been joined may be in the kernel for a moment longer.
deadline = time.monotonic() + 10
while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < deadline:
    pass
streams = sys.stdin, sys.stdout, sys.stderr
state = dict(
    program=sys.argv[0],
    arguments=sys.argv[3:5],
    parents=sys.argv[5:],
    parent=os.getppid(),
    environment=dict(os.environ),
    folder=os.getcwd(),
    temporary=tempfile.gettempdir(),
    umask=mask,
    limits=[resource.getrlimit(one) for one in range(16)],
    nice=os.getpriority(os.PRIO_PROCESS, 0),
    policy=os.sched_getscheduler(0),
    cores=sorted(os.sched_getaffinity(0)),
    oom=open("/proc/self/oom_score_adj").read(),
    handlers={one.name: str(signal.getsignal(one)).split(" at ")[0] for one in signal.Signals},
    blocked=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    wakes=signal.set_wakeup_fd(-1),
    files=[os.readlink(f"/proc/self/fd/{one}") for one in range(3)],
    open=sum(os.path.exists(f"/proc/self/fd/{one}") for one in range(3, 200)),
    streams=[(one.encoding, one.errors, one.line_buffering, one.write_through, one.isatty()) for one in streams],
    threads=[thread.name for thread in threading.enumerate()],
    tasks=len(os.listdir("/proc/self/task")),
    children=os.path.getsize("/proc/self/task") and open(f"/proc/self/task/{os.getpid()}/children").read(),
    death=death.value,
    collects=(gc.isenabled(), gc.get_threshold()),
    path=sys.path,
    flags=str(sys.flags),
    name=(__name__, __package__, sys.modules["__main__"].__dict__ is globals()),
)
with open(sys.argv[2], "w") as stream:
    json.dump(state, stream)
"""


@pytest.fixture(autouse=True)
def interruptible():
    """What is started in the background of a shell ignores SIGINT, and so would all that these tests start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def sockets(tmp_path, monkeypatch):
    """A folder of this test's own for sockets, and the environment that servers and workers have."""
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    for name, value in {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "OPENBLAS_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(forked, "ANSWER_S", 360.0)


@pytest.fixture
def modules(tmp_path):
    """A folder from which servers import, with the `trainer` of these tests; its name in the environment is that of no import."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "trainer.py").write_text(TRAINER)
    return folder


@pytest.fixture
def started(modules):
    """Starts servers on the host, with other constants if they are given; they end with the test."""
    with contextlib.ExitStack() as stack:
        last = []

        def start(*imported, code=str(modules), **constants):
            program = PROGRAM.replace(MAIN, f"vars().update({constants})\n{MAIN}")
            command = [sys.executable, "-c", program, KEY, "0", *imported]
            process = stack.enter_context(subprocess.Popen(command, env={**os.environ, "PYTHONPATH": code}, cwd="/"))
            stack.callback(process.kill)
            last[:] = [process]
            return process

        start.ended = lambda: None if last[0].poll() is None else f"it ended with {last[0].returncode}"
        yield start


@pytest.fixture
def connect(started):
    """Connects to the host's server, once it listens, until the test's end."""
    with contextlib.ExitStack() as stack:

        def to_server(*ordered):
            found = []
            await_until(lambda: found.append(ForkServer.of_host(KEY, ordered)) or found[-1], 120, "the server", 0.01, started.ended)
            stack.callback(found[-1].end)
            return found[-1]

        yield to_server


@pytest.fixture
def beside(modules):
    """Starts a server beside a worker."""
    with contextlib.ExitStack() as stack:

        def start(*imported):
            made = ForkServer.beside([sys.executable, "-c", PROGRAM], imported, {**os.environ, "PYTHONPATH": str(modules)})
            stack.callback(made.end)
            return made

        yield start


@pytest.fixture(params=["of the host", "beside a worker"])
def server(request, started, connect, beside):
    """Connects to a server of either kind, which imports these modules."""

    def begin(*imported):
        if request.param == "beside a worker":
            return beside(*imported)
        started(*imported)
        return connect()

    return begin


@pytest.fixture
def run(modules):
    """Forks a process that runs a program."""
    return lambda client, program, *arguments, **environment: client.fork([program, *arguments], environment_of(modules, **environment))


def environment_of(modules, **given):
    return {**os.environ, "PYTHONPATH": str(modules), **given}


def is_gone(pid):
    return not Path(f"/proc/{pid}").exists()


# --- what is forked


def test_nothing_tells_forked_process_from_new_one(server, modules, tmp_path, monkeypatch):
    """Only that its parent is the server, and that it leads a session."""
    client = server("decimal")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmp").mkdir()
    environment = environment_of(modules, TF_CONFIG="{}", TMPDIR=str(tmp_path / "tmp"))
    words, states = [BOND + STATE, "", "ä b", "", "--parent", str(os.getpid())], []
    before = os.umask(0o027)
    try:
        for name in ("new", "forked"):
            words[1] = str(tmp_path / name)
            if name == "new":
                subprocess.run([sys.executable, "-m", "trainer", *words], env=environment, check=True)
            else:
                assert client.fork(words, environment).wait(360) == 0
            states.append(json.loads((tmp_path / name).read_text()))
    finally:
        os.umask(before)
    expected, state = states
    assert expected.pop("parents") == ["--parent", str(expected.pop("parent"))]
    assert state.pop("parents") == ["--parent", str(os.getpid()), "--parent", str(state.pop("parent"))]
    assert state == expected
    assert (state["death"], state["umask"], state["open"]) == (signal.SIGKILL, 0o027, 0)


@pytest.mark.parametrize(
    ("program", "code"),
    [("", 0), ("sys.exit(7)", 7), ("sys.exit('why')", 1), ("import os; os.kill(os.getpid(), 9)", -9)],
    ids=["well", "with a code", "with a message", "by a signal"],
)
def test_exit_codes_of_processes(server, run, program, code):
    process = run(server(), program)
    assert (process.wait(360), process.returncode) == (code, code)


def test_waiting_for_what_runs_ends_as_usual(server, run):
    process = run(server(), PAUSE)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(360) == -signal.SIGTERM


def test_what_has_ended_gets_no_signal(server, run, monkeypatch):
    """Its process id may be another's by then."""
    process, sent = run(server(), ""), []
    process.wait(360)
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda *given: sent.append(given))
        process.send_signal(signal.SIGKILL)
    assert sent == []


def test_one_client_orders_several_processes(server, run):
    client = server()
    assert [run(client, f"sys.exit({number})").wait(360) for number in (1, 2, 3)] == [1, 2, 3]


def test_what_imports_set_stays_in_environment(server, run, modules):
    """TensorFlow does so."""
    (modules / "setting.py").write_text("import os; os.environ['SET_BY_IMPORT'] = '1'")
    process = run(server("setting"), "import os; sys.exit(os.environ['SET_BY_IMPORT'] + os.environ['TF_CONFIG'] != '1{}')", TF_CONFIG="{}")
    assert process.wait(360) == 0


def test_two_forked_processes_draw_different_numbers(server, run, tmp_path):
    client, path = server("random", "numpy"), tmp_path / "drawn"
    draw = f"import random, numpy; print(random.random(), numpy.random.random(), file=open({str(path)!r}, 'a'))"
    assert [run(client, draw).wait(360) for _ in range(2)] == [0, 0]
    assert len(set(path.read_text().split())) == 4


# --- refusals


@pytest.mark.parametrize(
    ("names", "changed"),
    [(["GIVEN"], {"GIVEN": "2"}), (["MORE"], {"GIVEN": "1", "MORE": ""}), (["GIVEN"], {}), (["GIVEN", "MORE"], {"MORE": "1"})],
    ids=["another value", "one more", "one fewer", "two"],
)
def test_another_environment_is_refused(server, modules, names, changed, monkeypatch):
    monkeypatch.setenv("GIVEN", "1")
    client = server()
    monkeypatch.delenv("GIVEN")
    with pytest.raises(ClusterError, match=rf"^the environment has changed: {', '.join(names)}$"):
        client.fork([""], environment_of(modules, **changed))


def test_variables_of_one_process_may_differ(server, run):
    assert run(server(), "", **dict.fromkeys(fork_server.OF_ONE_PROCESS - {"PYTHONPATH", "TMPDIR"}, "other")).wait(360) == 0


@pytest.mark.parametrize("library", ["libgomp.so.1", "libomp.so", "libiomp5.so"])
def test_openmp_has_already_read_its_threads(server, run, modules, library):
    (modules / library).write_text("x")
    (modules / "loads.py").write_text(
        f"import mmap\nwith open({str(modules / library)!r}, 'r+b') as stream:\n    kept = mmap.mmap(stream.fileno(), 0)"
    )
    with pytest.raises(ClusterError, match=r"^the environment has changed: OMP_NUM_THREADS$"):
        run(server("loads"), "", OMP_NUM_THREADS="77")


def test_threads_of_an_import_are_refused(server, run, modules):
    """A fork has only one of them."""
    (modules / "threaded.py").write_text("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()")
    with pytest.raises(ClusterError, match=r"^the import left threads behind$"):
        run(server("threaded"), "")


def test_refused_client_may_order_again(server, run):
    client = server()
    with pytest.raises(ClusterError):
        run(client, "", NEW="1")
    assert run(client, "").wait(360) == 0


def test_modules_of_an_order_are_imported_once(started, connect, run, modules, tmp_path):
    """From where the process itself would import them."""
    (modules / "noting.py").write_text(f"import os; print(os.getpid(), file=open({str(tmp_path / 'importing')!r}, 'a'))")
    server = started(code="")
    for _ in range(2):
        assert run(connect("noting"), "import noting").wait(360) == 0
    assert (tmp_path / "importing").read_text().split() == [str(server.pid)]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_module", "the import failed: No module named 'no_such_module'"),
        ("threaded", "the import left threads behind"),
    ],
    ids=["a failed import", "threads"],
)
def test_a_server_that_can_fork_for_nobody_ends(name, reason, started, connect, run, modules):
    """The next launch starts another."""
    (modules / "threaded.py").write_text("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()")
    server, client = started(WAIT_S=3600.0, LINGER_S=3600.0), connect(name)
    for _ in range(2):
        with pytest.raises(ClusterError, match=f"^{reason}$"):
            run(client, "")
    client.end()
    assert server.wait(360) == 0


def test_another_version_of_trainer_is_refused(server, run, modules):
    """Those with the version that was imported are still served."""
    client = server("decimal")
    assert run(client, "").wait(360) == 0
    with pytest.raises(ClusterError, match=r"^it has imported another version of the trainer$"):
        run(client, "", PYTHONPATH="/other")
    assert run(client, "").wait(360) == 0


@pytest.mark.parametrize(("least", "imported"), [(10**9, False), (1, True)])
def test_a_server_needs_free_memory(least, imported, started, modules, tmp_path):
    """Its import could end what trains there."""
    (modules / "noting.py").write_text(f"open({str(tmp_path / 'importing')!r}, 'w')")
    assert started("noting", WAIT_S=0.0, LEAST_FREE_MB=least).wait(360) == 0
    assert (tmp_path / "importing").exists() == imported


def test_nobody_forks_for_whom_nobody_waits(started, connect, run, modules, tmp_path, monkeypatch):
    """A client that lost patience during the import has started another process in the meantime."""
    monkeypatch.setattr(forked, "ANSWER_S", 0.0)
    (modules / "slow.py").write_text(
        f"import os\nos.register_at_fork(after_in_parent=lambda: open({str(tmp_path / 'forks')!r}, 'w'))\n"
        f"os.mkfifo({str(tmp_path / 'fifo')!r})\nopen({str(tmp_path / 'fifo')!r}).read()"
    )
    process = started("slow", LINGER_S=0.0)
    client = connect()
    with pytest.raises(ClusterError, match=r"^the process that was to fork it did not answer for 0 s$"):
        run(client, "")
    client.end()
    await_until((tmp_path / "fifo").exists, 120, "the import")
    (tmp_path / "fifo").write_text("go on")
    assert process.wait(360) == 0
    assert not (tmp_path / "forks").exists()


def test_an_order_that_does_not_fit_is_refused(server, run):
    with pytest.raises(ClusterError, match=r"^the process that was to fork it is gone "):
        run(server(), "", LONG="x" * 2**22)


def test_a_failed_import_ends_server_with_reason(beside, run, capfd):
    """What it left half imported is not for workers."""
    with pytest.raises(ClusterError, match=r"^the process that was to fork it "):
        run(beside("no_such_module"), "")
    assert "No module named 'no_such_module'" in capfd.readouterr().err


def test_a_killed_server_forks_nothing(beside, run):
    client = beside()
    client._process.kill()
    client._process.wait()
    with pytest.raises(ClusterError, match=r"^the process that was to fork it "):
        run(client, "")


# --- ends


def test_processes_of_two_clients_end_independently(started, connect, run):
    started()
    (first, other), (staying, ending) = (clients := (connect(), connect())), ((run(one, PAUSE)) for one in clients)
    assert first is not other
    ending.send_signal(signal.SIGTERM)
    assert ending.wait(360) == -signal.SIGTERM
    with pytest.raises(subprocess.TimeoutExpired):
        staying.wait(0.01)


def test_the_process_of_gone_client_is_killed(started, connect, run):
    started()
    client, staying = connect(), run(connect(), PAUSE)
    process = run(client, PAUSE)
    client.end()
    await_until(lambda: is_gone(process.pid), 120, "the end of the process", 0.01)
    with pytest.raises(subprocess.TimeoutExpired):
        staying.wait(0.01)


def test_a_killed_server_takes_its_processes_along(started, connect, run, tmp_path):
    server, client = started(), connect()
    process = run(client, f"{BOND}open({str(tmp_path / 'bound')!r}, 'w')\n{PAUSE}")
    await_until((tmp_path / "bound").exists, 120, "the process")
    server.kill()
    assert process.wait(360) == -signal.SIGKILL
    await_until(lambda: is_gone(process.pid) or _state(process.pid) == "Z", 120, "the end of the process", 0.01)


@pytest.mark.parametrize("number", fork_server.ENDS)
def test_a_requested_end_needs_no_message(started, connect, number, capfd):
    server = started()
    connect()
    server.send_signal(number)
    assert server.wait(360) == -number
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("number", fork_server.ENDS)
@pytest.mark.parametrize("kind", ["of the host", "beside a worker"])
def test_a_requested_end_waits_for_processes(kind, started, connect, beside, run, number, tmp_path):
    """A host that goes down sends it to all processes at once: a worker saves its state."""
    server = started() if kind == "of the host" else None
    client = connect() if server else beside()
    server = server or client._process
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = run(client, f"{BOND}open({str(pipe)!r}).read(); sys.exit(7)")
    with pipe.open("w"):
        server.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(0.1)
    assert process.wait(360) == 7
    assert server.wait(360) == -number


def test_a_server_without_clients_ends(started):
    assert started(WAIT_S=0.1, LINGER_S=3600.0).wait(360) == 0


def test_a_server_ends_after_its_last_client(started, connect, run):
    server = started(WAIT_S=3600.0, LINGER_S=0.1)
    first, last = connect(), connect()
    for client in (first, last):
        assert run(client, "").wait(360) == 0
        client.end()
    assert server.wait(360) == 0


def test_a_server_follows_on_killed_one(started, connect, run):
    """Whose socket is still there."""
    server = started()
    connect()
    server.kill()
    server.wait()
    assert ForkServer.of_host(KEY, []) is None
    started()
    assert run(connect(), "").wait(360) == 0


# --- beside a worker


def test_beside_a_worker_it_takes_little(beside, run, modules, tmp_path):
    """Its import has the least priority, and it is the first to go when memory is short."""
    (modules / "noting.py").write_text(
        "import os, threading\n"
        f"open({str(tmp_path / 'nice')!r}, 'w').write(str(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))"
    )
    client = beside("noting")
    assert run(client, "").wait(360) == 0
    pid = client._process.pid
    assert (tmp_path / "nice").read_text() == "19"
    assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0)
    assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) >= 500


def test_beside_a_worker_it_ends_with_parent(tmp_path):
    program = (
        "import os, sys, signal; from trainer.supervision.forked import ForkServer; "
        "server = ForkServer.beside([sys.executable, '-m', 'trainer.host.fork_server'], [], os.environ); "
        "print(server._process.pid, flush=True); server.fork(['--help'], os.environ).wait(); signal.pause()"
    )
    pipes = {"stdout": subprocess.PIPE, "text": True, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as parent:
        pid = int(parent.stdout.readline())
        assert parent.stdout.readline().startswith("usage: python -m trainer")
        parent.kill()
    await_until(lambda: is_gone(pid) or _state(pid) == "Z", 120, "the end of the server", 0.01)


def test_beside_a_worker_it_ends_with_connection(beside):
    client = beside()
    client._connection.close()
    assert client._process.wait(360) == 0


# --- the folder of sockets


@pytest.mark.parametrize("made", ["for a group", "a link", "somebody else's"])
def test_a_folder_open_to_others_is_refused(made, tmp_path, monkeypatch):
    own = tmp_path / f"lockstep-{os.getuid()}"
    assert Path(fork_server.folder()) == own
    if made == "for a group":
        own.chmod(0o710)
    elif made == "a link":
        own.rename(tmp_path / "elsewhere")
        own.symlink_to(tmp_path / "elsewhere")
    else:
        own.rename(tmp_path / "lockstep-4711")
        monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(PermissionError, match="is not a folder that only this user may enter"):
        fork_server.folder()
    assert ForkServer.of_host(KEY, []) is None


# --- modules that are executed late


@pytest.fixture
def executed(tmp_path, monkeypatch):
    """Imports `early`, which imports the late `late` and `absent`; what was executed by then, and with each call."""
    order = []
    monkeypatch.setitem(sys.modules, "told", SimpleNamespace(append=order.append))
    for name, text in (("early", "import late\ntry:\n    import absent\nexcept ImportError:\n    absent = None"), ("late", "value = 7")):
        (tmp_path / f"{name}.py").write_text(f"import told\ntold.append(__name__)\n{text}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(fork_server._Late, "MODULES", ("late", "absent"))
    fork_server.import_modules(["early"])
    yield order
    for name in ("early", "late"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "use",
    [
        "import late",
        "import late; late.__file__",
        "import late; hasattr(late, '__wrapped__')",
        "import inspect; inspect.getmodule(f.__code__)",
    ],
    ids=["an import", "its file", "a name with underscores", "a search for the module of code"],
)
def test_a_late_module_is_not_executed(use, executed):
    exec(f"def f(): pass\n{use}", {"inspect": inspect})
    assert executed == ["early"]


@pytest.mark.parametrize("use", ["import late; late.value", "from late import value", "from late import *; value"])
def test_a_late_module_is_executed_once_used(use, executed):
    for _ in range(2):
        exec(f"{use}\nimport late; assert late.value == 7", {})
    assert executed == ["early", "late"]


def test_a_late_module_misses_what_others_would(executed):
    import early
    import late

    assert early.absent is None
    with pytest.raises(AttributeError, match=r"^module 'late' has no attribute 'other'$"):
        late.other  # noqa: B018


def test_importing_leaves_python_as_it_was(executed):
    assert gc.isenabled()
    assert not [finder for finder in sys.meta_path if isinstance(finder, fork_server._Late)]


# --- with TensorFlow


def test_tensorflow_has_one_thread_and_trainer_runs(started, connect, modules, capfd):
    """Threads of TensorFlow would be refused."""
    (modules / "trainer.py").unlink()
    started(*LIBRARIES)
    process = connect().fork(["steptime", "--help"], environment_of(ROOT))
    assert process.wait(360) == 0
    assert re.search("^usage: python -m trainer steptime", capfd.readouterr().out, re.MULTILINE)


def _state(pid):
    """The letter of a process' state; empty if there is none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""
