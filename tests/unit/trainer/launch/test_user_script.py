"""A worker that starts a user's script: what it checks, gives and keeps."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.project import await_until
from trainer.common.errors import LockstepError
from trainer.launch import user_script
from trainer.launch.user_script import Script, _environment, _keep, _unpack, main
from trainer.network.member import Member, tf_config

USER = Path(__file__).resolve().parents[4] / "trainer" / "keras_fit" / "site"
ENDPOINTS = ["10.0.0.1:12345", "[fe80::1]:12345"]


@pytest.fixture
def script(tmp_path):
    """A script that is published; `source` is its text."""

    def make(source="", **more):
        archive = tmp_path / "script.zip"
        with zipfile.ZipFile(archive, "w") as written:
            written.writestr("main.py", source)
            written.writestr("log.csv", "of epoch 1")
        sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
        given = {"arguments": [], "outputs": [], "peers": ["10.0.0.1:1", "10.0.0.2:2"], "restarts": 0} | more
        return Script(tmp_path / "runs" / "mine", "pi1", archive, sha256, "main.py", **given)

    return make


def test_a_changed_archive_is_not_run(script):
    made = script("print(1)")
    with made.archive.open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(LockstepError, match="is not what was published, so it is not run"):
        _unpack(made)
    assert not made.folder.exists()
    made.archive.unlink()
    with pytest.raises(LockstepError, match="Fix: run the same command again; it sends the script again"):
        _unpack(made)


def test_what_an_earlier_start_left_stays(script):
    made = script("print(1)")
    _unpack(made)
    (made.folder / "left").touch()
    (made.folder / "log.csv").write_text("of epoch 40")
    _unpack(made)
    assert (made.folder / "left").exists()
    assert (made.folder / "log.csv").read_text() == "of epoch 40", "a file that was sent, and that the script goes on writing"
    (made.folder / "main.py").unlink()
    _unpack(made)
    assert (made.folder / "main.py").read_text() == "print(1)"
    _unpack(script("print(2)"))
    assert (made.folder / "main.py").read_text() == "print(2)", "another script"
    assert (made.folder / "log.csv").read_text() == "of epoch 1"


def test_the_environment_is_torchruns_without_locksteps_own_settings(script):
    given = {"PYTHONSAFEPATH": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": "trainer.zip", "TF_CONFIG": "{}", "MINE": "x"}
    made = _environment(script(restarts=2), Member(1, ENDPOINTS[::-1]), given)
    assert {name: made[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCKSTEP_RESTART", "MINE")} == {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "fe80::1",
        "MASTER_PORT": "12345",
        "LOCKSTEP_RESTART": "2",
        "MINE": "x",
    }
    assert not {"PYTHONSAFEPATH", "OPENBLAS_NUM_THREADS"} & made.keys()
    assert made["LOCKSTEP_OUTPUT"].endswith("runs/mine/workers/pi1/output")
    assert made["PYTHONPATH"].split(os.pathsep)[0].endswith("trainer/keras_fit/site")


@pytest.fixture
def as_worker(monkeypatch):
    """This process is one of two workers; its signals are its own again afterwards."""
    monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config(ENDPOINTS, 0)))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("source", "code"),
    [("", 0), ("raise SystemExit(3)", 3), (f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})", 137)],
)
def test_the_exit_code_is_the_scripts(script, as_worker, source, code):
    assert main(script(source)) == code


STOPS = """
import os, signal, subprocess
helper = subprocess.Popen(["sleep", "300"])
open("helper", "w").write(str(helper.pid))
os.kill(os.getpid(), signal.SIGSTOP)
"""


def gone(process):
    """Whether a process has ended, waited for or not."""
    try:
        return Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_script_that_stays_stopped_is_ended(script, as_worker, monkeypatch, capfd):
    monkeypatch.setattr(user_script, "ANSWER_S", 0.2)
    made = script(STOPS)
    assert main(made) == 137
    assert capfd.readouterr().err == (
        "lockstep: the script of rank 0 has been stopped (SIGSTOP, SIGTSTP) for 0 s, and other workers may wait for it: it is ended. "
        "Fix: ansible-playbook train.yml -e run=mine starts all again\n"
    )
    helper = (made.folder / "helper").read_text()
    await_until(lambda: gone(helper), 60, "the end of its helper")


WORKS = "\nopen('ready', 'w').close()\nwhile True: signal.pause()"


@pytest.mark.parametrize(
    ("handler", "code", "grace", "more"),
    [
        ("signal.SIG_DFL", 143, 60.0, ""),
        ("lambda *_: exit(7)", 7, 60.0, ""),
        ("signal.SIG_IGN", 137, 0.0, "lockstep: it goes on 0 s after SIGTERM: it is killed\n"),
    ],
)
def test_a_script_out_of_time_is_ended(script, as_worker, monkeypatch, capfd, handler, code, grace, more):
    """It is asked to end, and killed after a grace; its time is over once it has set its handler."""
    made = script(f"import signal; signal.signal(signal.SIGTERM, {handler}){WORKS}", time_limit=900.0)

    class Event(threading.Event):
        def wait(self, timeout):
            if timeout == 900.0:
                await_until((made.folder / "ready").exists, 60, "the script's handler", every=0.01)
                return False
            return super().wait(timeout)

    monkeypatch.setattr(user_script, "threading", SimpleNamespace(Event=Event, Thread=threading.Thread))
    monkeypatch.setattr(user_script, "GRACE_S", grace)
    assert main(made) == code
    assert capfd.readouterr().err == f"lockstep: the script of rank 0 has run for 900 s (time_limit): it is ended\n{more}"


PAUSES = """
import os, signal, time
open("pid", "w").write(str(os.getpid()))
os.kill(os.getpid(), signal.SIGSTOP)
while not os.path.exists("seen"):
    time.sleep(0.01)
raise SystemExit(5)
"""


@pytest.mark.parametrize(("workers", "patience"), [(2, 60.0), (1, 0.0)])
def test_pausing_script_goes_on(script, as_worker, monkeypatch, capfd, workers, patience):
    """A script that pauses goes on and one that nobody waits for may pause for ever."""
    monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config(ENDPOINTS[:workers], 0)))
    monkeypatch.setattr(user_script, "ANSWER_S", 60.0)
    made, limits, set_timer = script(PAUSES), [], signal.setitimer

    def timer(which, limit):
        """Continues the script once its stop was seen, and lets it end once that was seen."""
        set_timer(which, limit)
        limits.append(limit)
        os.kill(int((made.folder / "pid").read_text()), signal.SIGCONT)
        if len(limits) == 2:
            (made.folder / "seen").touch()

    monkeypatch.setattr(user_script.signal, "setitimer", timer)
    assert main(made) == 5
    assert limits == [patience, 0.0, 0.0]
    assert capfd.readouterr().err == ""


def test_outputs_are_kept_and_links_are_not(tmp_path, capsys):
    folder, output = tmp_path / "script", tmp_path / "output"
    (folder / "logs" / "deep").mkdir(parents=True)
    (folder / "logs" / "deep" / "a").write_text("1")
    (folder / "logs" / "link").symlink_to("/etc/passwd")
    (folder / "model").write_text("2")
    for _ in range(2):
        _keep(folder, output, ["logs", "model", "missing"])
    assert sorted(str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()) == ["logs/deep/a", "model"]
    assert capsys.readouterr().out.count("outputs=missing: the script left no such file or folder") == 2


@pytest.mark.parametrize("name", ["out", "out/sub", "deep/out", "file"])
def test_output_through_a_link_is_left_out(tmp_path, capsys, name):
    folder, output, outside = tmp_path / "script", tmp_path / "output", tmp_path / "outside"
    for place in (outside / "sub", folder / "deep"):
        place.mkdir(parents=True)
    (outside / "sub" / "secret").write_text("1")
    (folder / "out").symlink_to(outside)
    (folder / "deep" / "out").symlink_to("../out/sub")
    (folder / "file").symlink_to(outside / "sub" / "secret")
    _keep(folder, output, [name, "deep"])
    assert not output.exists()
    link = "out" if name.startswith("out") else name
    assert capsys.readouterr().out == f"outputs={name}: {link} is a link, which is not followed\n"


STARTUP = """
import sys
assert "trainer" not in sys.modules and "tensorflow" not in sys.modules, "nothing is loaded before it is needed"
print([type(finder).__name__ for finder in sys.meta_path].count("Hooked"), getattr(sys, "theirs", 0))
"""


@pytest.mark.parametrize(("workers", "hooks"), [("1", 0), ("2", 1)])
def test_python_starts_with_hooks_and_hosts_own_customization(workers, hooks, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.theirs = 7")
    environment = {"PYTHONPATH": f"{USER}{os.pathsep}{tmp_path}", "LOCKSTEP_WORKERS": workers}
    done = subprocess.run([sys.executable, "-c", STARTUP], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{hooks} 7\n"


def test_hooked_module_is_changed_once_it_is_imported(tmp_path):
    (tmp_path / "victim.py").write_text("VALUE = 1")
    source = "import sys, sitecustomize\nhooks = {'victim': lambda module: setattr(module, 'VALUE', 2)}\n"
    source += "sys.meta_path.insert(0, sitecustomize.Hooked(hooks))\nimport victim\nprint(victim.VALUE, victim.__spec__.name)"
    environment = {"PYTHONPATH": f"{USER}{os.pathsep}{tmp_path}"}
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "2 victim\n"


def test_a_script_alone_needs_nothing_of_lockstep():
    import runpy

    module = runpy.run_path(str(USER / "lockstep.py"))
    model = object()
    assert module["distribute"](model) is model
    assert (module["rank"](), module["workers"]()) == (0, 1)
