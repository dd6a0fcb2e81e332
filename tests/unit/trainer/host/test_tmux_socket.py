"""A tmux server whose socket is gone makes it again."""

import os
import secrets
import shutil
import subprocess

import pytest

from trainer.host import tmux_socket


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Name of a tmux server with the session `a`, whose socket is in a folder of the test's own."""
    if shutil.which("tmux") is None:
        pytest.skip("no tmux here")
    name = f"lockstep-test-{secrets.token_hex(4)}"
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    subprocess.run(["tmux", "-L", name, "new-session", "-d", "-s", "a", "sleep", "infinity"], check=True)
    yield name
    tmux_socket.mend(name)
    subprocess.run(["tmux", "-L", name, "kill-server"], check=True)


def sessions(name):
    return subprocess.run(["tmux", "-L", name, "list-sessions", "-F", "#S"], capture_output=True, text=True, check=False).stdout.split()


@pytest.mark.parametrize("whole_folder", [False, True])
def test_removed_socket_is_made_again(server, tmp_path, whole_folder):
    folder = tmp_path / f"tmux-{os.getuid()}"
    (folder / server).unlink()
    if whole_folder:
        folder.rmdir()
    assert sessions(server) == []
    assert tmux_socket.mend(server)
    assert sessions(server) == ["a"]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_other_servers_are_left_alone(server, tmp_path):
    assert not tmux_socket.mend(server)
    assert not tmux_socket.mend(server[:-1])
    (tmp_path / f"tmux-{os.getuid()}" / server).unlink()
    assert not tmux_socket.mend(f"{server}x")
    assert sessions(server) == []
