"""As much of an AnsibleModule as lean modules use, with commands that a test answers."""

import subprocess

import pytest

from tests.unit.conftest import ROOT, load_file


class Failed(Exception):
    """fail_json."""


class Ended(Exception):
    """exit_json."""


class Module:
    """`answers` maps the beginning of a command to (exit code, output, error output), or to a function that gives that."""

    def __init__(self, answers=None, check_mode=False, programs=None, **params):
        self.params, self.check_mode, self.answers, self.programs = params, check_mode, answers or {}, programs
        self.ran = []

    def get_bin_path(self, name):
        return f"/usr/bin/{name}" if self.programs is None or name in self.programs else None

    def run_command(self, argv):
        line = " ".join(argv)
        self.ran.append(line)
        fitting = [beginning for beginning in self.answers if line.startswith(beginning)]
        if not fitting:
            return 0, "", ""
        answer = self.answers[max(fitting, key=len)]
        return answer(argv) if callable(answer) else answer

    def fail_json(self, msg):
        raise Failed(msg)

    def exit_json(self, changed=False, **returned):
        raise Ended({"changed": changed, **returned})


class Real(Module):
    """Runs its commands for real, and remembers them."""

    def run_command(self, argv):
        self.ran.append(" ".join(argv))
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr


def load(name):
    """A module of plugins/modules."""
    return load_file(ROOT / "plugins" / "modules" / f"{name}.py", name)


def _run(program, module):
    program.AnsibleModule = lambda **_: module
    program.main()


def ended(program, module):
    """What a module returned; `module` stands for Ansible's."""
    with pytest.raises(Ended) as caught:
        _run(program, module)
    return caught.value.args[0]


def failed(program, module):
    """The message that a module failed with."""
    with pytest.raises(Failed) as caught:
        _run(program, module)
    return str(caught.value)
