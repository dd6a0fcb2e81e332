"""A host that is this machine, as an action sees it over SSH."""

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

from ansible.errors import AnsibleError


def execute(command, in_data=None, sudoable=False, executable="/bin/sh"):
    """Run a command, as Ansible's actions do."""
    done = subprocess.run([executable, "-c", command], input=in_data, capture_output=True, check=False, timeout=60)
    text = done.stdout.decode("utf-8", "surrogateescape")
    return {"rc": done.returncode, "stdout": text, "stderr": done.stderr.decode(errors="replace")}


def fetch(source, target):
    """Copy a file, as Ansible's connections do."""
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise AnsibleError(f"failed to transfer file to {target}: {error}") from error


def action():
    """An action whose SSH hands its command to a shell of this machine."""
    connection = SimpleNamespace(
        fetch_file=fetch,
        transport="ssh",
        host="",
        get_option={"host": "pi1", "password": None, "ssh_executable": "ssh"}.get,
        _build_command=lambda _program, _kind, _host, command: ["/bin/sh", "-c", f"exec {command}"],
    )
    variables = {"ansible_python_interpreter": sys.executable}
    templar = SimpleNamespace(template=lambda text: text)
    return SimpleNamespace(_low_level_execute_command=execute, _connection=connection, task_vars=variables, _templar=templar)


def session(folder, monkeypatch):
    """Put a `tmux` first in PATH whose only session has the returned process, which sleeps."""
    process = subprocess.Popen(["sleep", "600"])
    tmux = folder / "bin" / "tmux"
    tmux.parent.mkdir()
    tmux.write_text(f"#!/bin/sh\necho {process.pid}\n")
    tmux.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmux.parent}:{os.environ['PATH']}")
    return process
