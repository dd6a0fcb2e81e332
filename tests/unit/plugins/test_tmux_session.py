"""Sessions that are ended by a command: real ones, of a tmux server of the test's own."""

import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import lockstep_claims as claims
import lockstep_tmux as tmux
import pytest

from tests.project import await_until
from tests.unit.fake_module import Module, Real, ended, load

tmux_session = load("tmux_session")


@pytest.fixture
def module(monkeypatch):
    monkeypatch.setattr(claims, "SOCKET", f"lockstep-test-{time.monotonic_ns()}")
    monkeypatch.setattr(claims, "TMUX", ("tmux", "-L", claims.SOCKET))
    yield Real()
    subprocess.run(["tmux", "-L", claims.SOCKET, "kill-server"], capture_output=True, check=False)


def start(module, name, argv, folder):
    module.params = {"name": name, "argv": argv, "chdir": str(folder), "state": "present"}
    assert ended(tmux_session, module) == {"changed": True}


def test_session_starts_while_the_server_ends(module, tmp_path):
    """As where a worker ends at once, or a run is started as soon as another has ended."""
    commands = [claims.session_command(name, str(tmp_path), ["touch", name]) for name in map(str, range(100))]
    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(lambda command: claims.start_session(command, module.run_command), commands)) == {""}
    await_until(lambda: len(list(tmp_path.iterdir())) == len(commands), 20, "all of them have run")


def test_what_tmux_says_is_shown(module, tmp_path):
    start(module, "a-w0", ["sleep", "60"], tmp_path)
    error = claims.start_session(claims.session_command("a-w0", str(tmp_path), ["sleep", "60"]), module.run_command)
    assert error == "duplicate session: a-w0"


@pytest.mark.parametrize("supervised", [True, False])
def test_supervisor_is_told_before_the_signal_comes(supervised, module, tmp_path):
    """Without the mark it would take the signal for that of a host that goes down."""
    folder = tmp_path / "with space"
    folder.mkdir()
    if supervised:
        (folder / claims.SUPERVISED).touch()
    trap = f"trap 'ls > seen; exit' {signal.SIGTERM.value}; touch ready; while :; do sleep 0.05; done"
    start(module, "a-w0", ["bash", "-c", f"bash -c {trap!r}; exit"], folder)
    await_until((folder / "ready").exists, 60, "the session")
    assert tmux.Session(module, "a-w0").end(20) == "ended"
    assert (claims.MARK in (folder / "seen").read_text().split()) is supervised


def test_the_wish_is_left_before_the_end(module, tmp_path):
    """By it a supervisor tells a user's wish from the end of its host."""
    start(module, "a-w0", ["sleep", "60"], tmp_path)
    module.params |= {"state": "absent", "grace": 1, "mark": str(tmp_path / claims.MARK)}
    assert ended(tmux_session, module)["changed"] is True
    assert (tmp_path / claims.MARK).is_file()


@pytest.mark.parametrize("supervised", [True, False])
def test_supervisor_that_returns_finds_the_wish_to_end(supervised, tmp_path):
    """A supervisor that returns later finds that it was asked to end. Its host goes down, or restarts, while somebody stops the run."""
    if supervised:
        (tmp_path / claims.SUPERVISED).touch()
    options = {"name": "a-w0", "argv": None, "chdir": "/", "state": "absent", "grace": 1, "mark": str(tmp_path / claims.MARK)}
    absent = Module({"/usr/bin/tmux": (1, "", "no server")}, **options)
    assert ended(tmux_session, absent) == {"changed": False, "ended": "absent"}
    assert (tmp_path / claims.MARK).exists() is supervised
