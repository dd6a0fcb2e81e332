"""Modules sent lean: the same answers as with Ansible's own library, and plain failures."""

import json
import subprocess
import sys
import zlib
from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleActionFail
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from control.remote import answers, modules
from tests.unit.conftest import ROOT

LEAN = sorted(path.stem for path in (modules.PLUGINS / "modules").glob("*.py"))


def answer(module, arguments, check_mode=False):
    """What a module says when its payload is run as on a host."""
    sent = modules._payload(module, arguments, "mark:", check_mode)
    done = subprocess.run([sys.executable, "-c", modules.LOADER], input=sent, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    lines = [line for line in done.stdout.decode().splitlines() if line.startswith("mark:")]
    return json.loads(lines[-1].removeprefix("mark:"))


def test_there_are_lean_modules():
    assert set(LEAN) >= {"worker_claim", "worker_files", "tmux_session"}


@pytest.mark.parametrize("module", LEAN)
def test_a_lean_module_is_small_and_documented(module):
    assert len(modules._payload(module, {}, "m", False)) < 20_000
    source = (ROOT / "plugins" / "modules" / f"{module}.py").read_text()
    assert all(f'{block} = """' in source for block in ("DOCUMENTATION", "RETURN"))


def test_files_are_written_whole_and_only_once(tmp_path):
    wanted = {"files": [{"path": str(tmp_path / "new folder" / "a ü.sh"), "content": "über\r\n'\"{{ x }}", "mode": "0755"}]}
    path = tmp_path / "new folder" / "a ü.sh"
    assert answer("worker_files", wanted, check_mode=True) == {"changed": True, "written": [str(path)]}
    assert not path.exists()
    assert answer("worker_files", wanted) == {"changed": True, "written": [str(path)]}
    assert path.read_bytes().decode() == "über\r\n'\"{{ x }}"
    assert path.stat().st_mode & 0o777 == 0o755
    assert answer("worker_files", wanted) == {"changed": False, "written": []}
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_unwritable_file_is_named_and_leaves_nothing(tmp_path):
    (tmp_path / "taken").write_text("a file, not a folder")
    shown = answer("worker_files", {"files": [{"path": str(tmp_path / "taken" / "x"), "content": "y"}]})
    assert shown["failed"] is True
    assert shown["msg"].startswith(f"{tmp_path}/taken/x can't be written: ")


def test_check_mode_and_types_reach_the_module(tmp_path):
    root = str(tmp_path / "root")
    claimed = {
        "root": root,
        "run": "r",
        "folder": f"{root}/runs/r",
        "host": "h",
        "port": "1",
        "session": "s",
        "python": sys.executable,
        "state": "absent",
    }
    assert answer("worker_claim", claimed, check_mode=True) == {"changed": False}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "s", "state": "absnt"}, "state=absnt: expected one of present, absent"),
        ({"name": "s"}, "state=present needs argv"),
        ({"state": "absent"}, "parameter name is missing"),
        ({"name": "s", "state": "absent", "grace": "soon"}, "grace=soon: expected float"),
        ({"name": "s", "state": "absent", "nme": "t"}, "unknown parameter nme; known are: argv, chdir, grace, mark, name, state"),
    ],
)
def test_wrong_arguments_are_refused_as_by_ansible(arguments, message):
    assert answer("tmux_session", arguments) == {"failed": True, "msg": message}


def action(stdout="", stderr="", code=0, seen=None, variables=None):
    """An action whose host answers so."""

    def execute(command, **options):
        if seen is not None:
            seen.append((command, options))
        return {"stdout": stdout, "stderr": stderr, "rc": code}

    return SimpleNamespace(_low_level_execute_command=execute, _templar=Templar(loader=DataLoader()), task_vars=variables or {})


def test_only_the_module_of_this_call_answers():
    """Not what a host's login script prints, nor an earlier answer."""
    with pytest.raises(AnsibleActionFail, match=r"tmux_session got no answer"):
        modules.execute(action(stdout='lean-0123456789abcdef:{"changed": false}\n'), "tmux_session", {"name": "s", "state": "absent"})


def test_a_host_without_python_gets_a_plain_message():
    with pytest.raises(AnsibleActionFail, match=r"tmux_session got no answer \(exit code 127\): sh: python3: not found"):
        modules.execute(action(stderr="sh: python3: not found\n", code=127), "tmux_session", {})


@pytest.mark.parametrize(
    ("variables", "python"),
    [
        ({}, "python3"),
        ({"ansible_python_interpreter": "auto_silent"}, "python3"),
        ({"ansible_python_interpreter": "/a b/python"}, "'/a b/python'"),
        ({"ansible_facts": {"discovered_interpreter_python": "/usr/bin/python3.12"}}, "/usr/bin/python3.12"),
    ],
)
def test_the_hosts_own_python_is_used(variables, python):
    seen = []
    with pytest.raises(AnsibleActionFail):
        modules.execute(action(seen=seen, variables=variables), "tmux_session", {})
    assert seen[0][0] == f"{python} -c '{modules.LOADER}'"
    assert zlib.decompress(seen[0][1]["in_data"]).startswith(b'"""Replaces `ansible.module_utils.basic`')


PLACE = {"root": "/usr", "python": sys.executable, "port": 1}
HONEST = {
    "host_probe": {**PLACE, "direct_port": 2, "address": "127.0.0.1", "dfs": "/tmp", "tokens": ["/etc/hostname", "/missing"]},
    "network_probe": {"rank": 0, "hosts": [{"name": "a", "address": "127.0.0.1", "port": 1}], "nonce": "n" * 16, "seconds": 0.1},
    "worker_claim": {**PLACE, "run": "r", "folder": "/tmp/no-run", "host": "h", "session": "no-such-session", "state": "query"},
}


@pytest.mark.parametrize("module", HONEST)
def test_what_a_host_really_answers_is_believed(module):
    written = json.dumps(answer(module, HONEST[module]))
    assert answers.believed(module, written, HONEST[module]).keys() == json.loads(written).keys() > {"changed"}
