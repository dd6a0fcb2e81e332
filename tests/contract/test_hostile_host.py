"""A host in another's hands: whatever its Python answers to a module, nothing of it runs on this machine or changes a variable here.

One play has every task answered with every order, one after the other.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from tests.local_project import LocalProject

PYTHON = '''#!/usr/bin/env python3
"""A host's Python that runs nothing and answers what an attacker likes, one answer after the other, to modules of either kind."""
import pathlib, re, sys, zlib
sent = sys.stdin.buffer.read()
try:
    mark = re.search(r"lean-[0-9a-f]{16}:", zlib.decompress(sent).decode())[0]
except zlib.error:
    mark = ""
answer = min(pathlib.Path(__file__).with_name("answers").iterdir())
print("\\n" + mark + answer.read_text())
answer.unlink()
'''
INVENTORY = """workers:
  hosts:
    evil: {{ansible_connection: local, ansible_python_interpreter: "{folder}/python", worker_root: {folder}/root}}
    victim: {{ansible_connection: ssh, ansible_host: 127.0.0.1, ansible_port: 1, worker_root: {folder}/root}}
"""
PLAY = """- hosts: evil
  gather_facts: false
  tasks:
    - control: {do: runs.options.check, command: playbooks/lab_slurm}
"""
TASK = """    - TASK
      register: answered
      ignore_errors: true
    - ansible.builtin.debug: {msg: "answer NUMBER: {{ answered }}"}
"""
VICTIM = """- hosts: victim
  any_errors_fatal: false
  gather_facts: false
  ignore_unreachable: true
  tasks:
    - worker_files: {files: []}
    - ansible.builtin.debug:
        msg: "plan {{ hostvars.evil.plan | default('untouched') }}, root {{ hostvars.evil.worker_root }}"
"""
TASKS = {
    "ours": "worker_files: {files: []}",
    "file": "ansible.builtin.file: {path: /nowhere, state: absent}",
    "command": "ansible.builtin.command: {argv: [ls]}",
    "copy": "ansible.builtin.copy: {content: a, dest: /nowhere/a}",
}
ORDERS = list(product(TASKS, ("add_host", "launch_begun", "ansible_facts", "show_last")))
TEMPLATES = list(product(("ours", "file"), ("plain", "trusted")))


def order(name: str, folder: Path) -> object:
    """A field that Ansible and this project's commands obey; each of the first two ran a program on this machine."""
    proxy = f"-o ProxyCommand='sh -c \"touch {folder}/ran\"'"
    return {
        "add_host": {"host_name": "victim", "groups": ["cluster"], "host_vars": {"ansible_ssh_common_args": proxy}},
        "launch_begun": {"run": "x", "folder": str(folder), "hosts": []},
        "ansible_facts": {"plan": {"folder": "/root"}, "worker_root": "/elsewhere", "ansible_connection": "local"},
        "show_last": "Fix: run something",
    }[name]


def template(kind: str, folder: Path) -> object:
    """A template in an answer, `trusted` as Ansible's own processes tell each other that a text is a template."""
    text = f"{{{{ lookup('pipe', 'touch {folder}/ran') }}}}"
    return (
        text
        if kind == "plain"
        else {"__ansible_type": "_AnsibleTaggedStr", "value": text, "tags": [{"__ansible_type": "TrustedAsTemplate"}]}
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hostile host's."""
    return tmp_path_factory.mktemp("evil")


@pytest.fixture(scope="module")
def shown(project: LocalProject, folder: Path) -> str:
    """The output of the play."""
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)
    (folder / "answers").mkdir()
    play = PLAY
    for number, (task, answer) in enumerate(answers(folder)):
        (folder / f"answers/{number:02}").write_text(json.dumps({"changed": True, **answer}))
        play += TASK.replace("TASK", TASKS[task]).replace("NUMBER", f"{number:02}")
    (folder / "hosts.yml").write_text(INVENTORY.format(folder=folder))
    (project.root / "evil.yml").write_text(play + VICTIM)
    done = replace(project, inventory=str(folder / "hosts.yml")).play("evil", "-v", check=False)
    assert list((folder / "answers").iterdir()) == []
    assert "Traceback" not in done.stdout + done.stderr
    return done.stdout + done.stderr


def answers(folder: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Tasks with what they are answered: orders, then templates."""
    for task, name in ORDERS:
        yield task, {"written": ["/a"], name: order(name, folder)}
    for task, kind in TEMPLATES:
        yield task, {"written": [template(kind, folder)]}


def part(shown: str, number: int) -> str:
    """What is shown of an answer."""
    before, _, after = shown.partition(f'"answer {number:02}: ')
    return before.rpartition('"answer ')[2] + after.partition('"answer ')[0]


@pytest.mark.parametrize("number", range(len(ORDERS)), ids=["-".join(pair) for pair in ORDERS])
def test_order_is_refused(number, shown):
    assert f"the host answers {ORDERS[number][1]}=" in part(shown, number)


def test_nothing_ran_and_no_variable_changed(shown, folder):
    assert not (folder / "ran").exists()
    assert f"plan untouched, root {folder}/root" in shown
    assert "\nFix: run something" not in shown
    assert "Taking the launch" not in shown


@pytest.mark.parametrize("number", [len(ORDERS), len(ORDERS) + 2], ids=["ours", "file"])
def test_template_stays_a_text(number, shown):
    assert "lookup('pipe'" in part(shown, number)
