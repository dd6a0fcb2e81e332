"""A host in another's hands: whatever its Python answers to a module, nothing of it runs on this machine or changes a variable here."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE

PYTHON = '''#!/usr/bin/env python3
"""A host's Python that runs nothing and answers what an attacker likes, to modules of either kind."""
import pathlib, re, sys, zlib
sent = sys.stdin.buffer.read()
try:
    mark = re.search(r"lean-[0-9a-f]{16}:", zlib.decompress(sent).decode())[0]
except zlib.error:
    mark = ""
print("\\n" + mark + pathlib.Path(__file__).with_name("answer.json").read_text())
'''
INVENTORY = """workers:
  hosts:
    evil: {{ansible_connection: local, ansible_python_interpreter: "{folder}/python", worker_root: {folder}/root}}
    victim: {{ansible_connection: ssh, ansible_host: 127.0.0.1, ansible_port: 1, worker_root: {folder}/root}}
"""
PLAY = """- hosts: evil
  gather_facts: false
  tasks:
    - control: {{do: runs.check_options, command: playbooks/lab_slurm}}
    - {task}
      register: answered
      ignore_errors: true
    - ansible.builtin.debug: {{msg: "{{{{ answered }}}}"}}
- hosts: victim
  any_errors_fatal: false
  gather_facts: false
  ignore_unreachable: true
  tasks:
    - worker_files: {{files: []}}
    - ansible.builtin.debug:
        msg: "plan {{{{ hostvars.evil.plan | default('untouched') }}}}, root {{{{ hostvars.evil.worker_root }}}}"
"""
TASKS = {
    "ours": "worker_files: {files: []}",
    "file": "ansible.builtin.file: {path: /nowhere, state: absent}",
    "command": "ansible.builtin.command: {argv: [ls]}",
    "copy": "ansible.builtin.copy: {content: a, dest: /nowhere/a}",
}


@pytest.fixture
def evil(project: LocalProject, tmp_path: Path):
    """Run a task on the hostile host: `evil(task, answer)` returns the command's output."""

    def run(task: str, answer: dict) -> str:
        (tmp_path / "python").write_text(PYTHON)
        (tmp_path / "python").chmod(0o755)
        (tmp_path / "answer.json").write_text(json.dumps(answer))
        (tmp_path / "hosts.yml").write_text(INVENTORY.format(folder=tmp_path))
        (project.root / "evil.yml").write_text(PLAY.format(task=task))
        done = replace(project, inventory=str(tmp_path / "hosts.yml")).play("evil", "-v", check=False)
        assert "Traceback" not in done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def orders(folder: Path) -> dict[str, object]:
    """Fields that Ansible and this project's commands obey; each of the first two ran a program on this machine."""
    proxy = f"-o ProxyCommand='sh -c \"touch {folder}/ran\"'"
    return {
        "add_host": {"host_name": "victim", "groups": ["cluster"], "host_vars": {"ansible_ssh_common_args": proxy}},
        "launch_begun": {"run": "x", "folder": str(folder), "hosts": []},
        "ansible_facts": {"plan": {"folder": "/root"}, "worker_root": "/elsewhere", "ansible_connection": "local"},
        "show_last": "Fix: run something",
    }


NAMES = ("add_host", "launch_begun", "ansible_facts", "show_last")
OFTEN = [*(("ours", name) for name in NAMES), ("file", "ansible_facts"), ("copy", "ansible_facts")]


@pytest.mark.parametrize(
    ("kind", "name"), [*OFTEN, *(pytest.param(*pair, marks=EXHAUSTIVE) for pair in product(TASKS, NAMES) if pair not in OFTEN)]
)
def test_an_order_is_refused(kind, name, evil, tmp_path):
    shown = evil(TASKS[kind], {"changed": True, "written": ["/a"], name: orders(tmp_path)[name]})
    assert f"the host answers {name}=" in shown
    assert not (tmp_path / "ran").exists()
    assert f"plan untouched, root {tmp_path}/root" in shown
    assert "\nFix: run something" not in shown
    assert "Taking the launch" not in shown


@pytest.mark.parametrize("kind", ["ours", "file"])
def test_a_template_in_an_answer_stays_a_text(kind, evil, tmp_path):
    template = f"{{{{ lookup('pipe', 'touch {tmp_path}/ran') }}}}"
    shown = evil(TASKS[kind], {"changed": True, "written": [template]})
    assert "lookup('pipe'" in shown
    assert not (tmp_path / "ran").exists()
    # As Ansible's own processes tell each other that a text is a template.
    trusted = {"__ansible_type": "_AnsibleTaggedStr", "value": template, "tags": [{"__ansible_type": "TrustedAsTemplate"}]}
    evil(TASKS[kind], {"changed": True, "written": [trusted]})
    assert not (tmp_path / "ran").exists()
