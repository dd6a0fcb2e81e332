"""What was typed, where a variable was given more than once."""

import pytest
from ansible import context
from ansible.utils.context_objects import CLIArgs
from ansible.utils.display import Display
from ansible.utils.vars import load_extra_vars

from control.common import command_line


@pytest.fixture
def typed(monkeypatch):
    """Type `-e` with each of these."""

    def type_(*given):
        monkeypatch.setattr(context, "CLIARGS", CLIArgs({"extra_vars": given}))
        monkeypatch.setattr(load_extra_vars, "extra_vars", None, raising=False)

    return type_


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        (("set=a.b=1", "set=c=[1,2]"), "set", "a.b=1,c=[1,2]"),
        (("set=a.b=1 epochs=2 set=c=2",), "set", "a.b=1,c=2"),
        (('{"set": "a.b=1"}', "set=c=2"), "set", "a.b=1,c=2"),
        (("set=a.b=1", "set=a.b=1"), "set", "a.b=1"),
        (("vary=a=1,2", "vary=b=3,4"), "vary", "a=1,2;b=3,4"),
        (("outputs=a.keras", "outputs=logs/"), "outputs", "a.keras,logs/"),
        (('args="--a 1"', "args=--b"), "args", "--a 1 --b"),
        (("epochs=2", "epochs=3"), "epochs", "3"),
    ],
)
def test_what_is_given_twice(typed, given, name, value):
    typed(*given)
    assert str(command_line.extra_variables()[name]) == value


def test_file_of_variables_counts_too(typed, tmp_path):
    (tmp_path / "more.yml").write_text("set: a.b=1\n")
    typed(f"@{tmp_path}/more.yml", "set=c=2")
    assert command_line.extra_variables()["set"] == "a.b=1,c=2"


def test_value_that_does_not_count_is_named(typed, monkeypatch):
    warned = []
    monkeypatch.setattr(Display, "warning", lambda self, message: warned.append(message))
    typed("epochs=2", "epochs=3", "set=a=1", "set=b=2")
    command_line.operator_options("train", {})
    assert warned == ["-e epochs is given 2 times; the last counts: epochs=3, not 2"]


@pytest.mark.parametrize(
    ("path", "program"), [("bin", "ansible-playbook"), ("elsewhere", ".venv/bin/ansible-playbook"), ("", ".venv/bin/ansible-playbook")]
)
def test_commands_begin_as_this_one(tmp_path, monkeypatch, path, program):
    for folder in (".venv/bin", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "ansible-playbook").touch(0o755)
    places = {"bin": tmp_path / ".venv/bin", "elsewhere": tmp_path / "elsewhere", "": tmp_path}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(places[path]))
    monkeypatch.setattr(command_line.sys, "argv", [str(tmp_path / ".venv/bin/ansible-playbook"), "train.yml"])
    monkeypatch.setattr(context, "CLIARGS", CLIArgs({}))
    assert command_line.as_typed("stop  ansible-playbook stop.yml -e run=r; x/ansible-playbook a.yml") == (
        f"stop  {program} stop.yml -e run=r; x/ansible-playbook a.yml"
    )
