"""The end of a session's processes."""

import os
import signal
import subprocess
import threading
import types

import lockstep_tmux as tmux


def test_killed_session_has_ended_when_its_processes_have(monkeypatch):
    """Until then they hold their ports, and the next look at the host would find them held."""
    late = threading.Event()
    with subprocess.Popen(["sleep", "60"]) as process:

        def kill(pids, number):
            if number == signal.SIGKILL:
                threading.Timer(0.3, lambda: (late.set(), os.kill(process.pid, number))).start()

        module = types.SimpleNamespace(get_bin_path=lambda name: name, run_command=lambda argv: (0, "", ""))
        monkeypatch.setattr(tmux, "_send", kill)
        monkeypatch.setattr(tmux.Session, "_processes", lambda session: [process.pid])
        assert tmux.Session(module, "name").end(0.0) == "killed"
        assert late.is_set()
        # It is a zombie until its parent asks: nothing of it holds anything.
        assert process.poll() == -signal.SIGKILL
