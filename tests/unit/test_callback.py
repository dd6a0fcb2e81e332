"""The output of commands: what it does when nobody reads it any more."""

import json
import os
import subprocess
import sys

from tests.unit.conftest import ROOT

SAY = """
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display


class ActionModule(ActionBase):
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        for _ in range(40):
            Display().display("x" * 2000)
        return {**super().run(tmp, task_vars), "changed": False}
"""


def test_a_command_whose_output_loses_its_reader_finishes_its_work(tmp_path):
    """Ansible's own thread of results would end at the first line of progress, and the command wait for ever."""
    done = tmp_path / "done"
    (tmp_path / "say.py").write_text(SAY)
    tasks = [{"name": "Say", "say": {}}, {"name": "Done", "file": {"path": str(done), "state": "touch"}}]
    (tmp_path / "say.yml").write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    argv = [sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", "-c", "local"]
    argv += ["-e", f"ansible_python_interpreter={sys.executable}", str(tmp_path / "say.yml")]
    read, write = os.pipe()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ANSIBLE_ACTION_PLUGINS": str(tmp_path)}
    process = subprocess.Popen(argv, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, env=environment)
    os.close(write)
    os.read(read, 1)
    os.close(read)
    try:
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, error
    assert done.is_file()


def test_stages_are_announced_unless_they_are_left_out(tmp_path):
    def play(name, *conditions):
        tasks = [{"name": "Note", "set_fact": {"known": True}, "when": condition} for condition in conditions]
        return {"name": name, "hosts": "localhost", "gather_facts": False, "tasks": tasks}

    plays = [play("First", True), play("Left out", "missing is defined"), play("Half", "not known", "known"), play("Wrong", "missing")]
    (tmp_path / "stages.yml").write_text(json.dumps(plays))
    argv = [sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", "-c", "local", str(tmp_path / "stages.yml")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert [line for line in done.stdout.splitlines() if line.startswith("---")] == ["--- First", "--- Half", "--- Wrong"]
    assert done.returncode != 0
    assert "missing" in done.stdout
