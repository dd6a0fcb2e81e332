"""Playbooks as child processes: ended with whoever started them."""

import os
import signal
import subprocess
import sys

import pytest
from ansible import context
from ansible.utils.context_objects import CLIArgs

from control.common import child_playbooks
from control.common.child_playbooks import Interrupted, Playbook, ending_at_signals, heeding_signals
from tests.project import await_until
from trainer.common.errors import LockstepError


@pytest.fixture
def playbook(tmp_path, monkeypatch):
    """A child that runs some Python instead of a playbook."""

    def make(code):
        monkeypatch.setattr(Playbook, "_argv", lambda self, variables: [sys.executable, "-c", code])
        return Playbook("x.yml", {}, tmp_path / "logs" / "x.log")

    monkeypatch.setattr(child_playbooks, "POLL_S", 0.01)
    monkeypatch.setattr(child_playbooks, "GRACE_S", 0.3)
    return make


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_output_is_kept_and_the_exit_code_told(playbook):
    made = playbook("import sys; print('said'); print('told', file=sys.stderr); sys.exit(7)")
    assert made.run(lambda: False) == 7
    assert sorted(made.log.read_text().split()) == ["said", "told"]
    assert made.run(lambda: False) == 7
    assert made.log.read_text().count("said") == 2


def test_meanwhile_is_called(playbook, tmp_path):
    """The child ends once it was, or after a minute."""
    calls, seen = [], tmp_path / "seen"

    def meanwhile():
        calls.append(1)
        if len(calls) == 4:
            seen.touch()

    code = f"import os, time\nfor _ in range(6000):\n    if os.path.exists({str(seen)!r}): break\n    time.sleep(0.01)"
    playbook(code).run(lambda: False, meanwhile)
    assert seen.exists()


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("", signal.SIGINT),
        ("signal.signal(signal.SIGINT, signal.SIG_IGN)", signal.SIGTERM),
        ("signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)", signal.SIGKILL),
    ],
)
def test_a_child_is_ended_when_its_command_is(playbook, code, number):
    made = playbook(f"import os,signal,time; {code}\nprint(os.getpid(), flush=True); time.sleep(60)")

    def ended():
        return made.log.is_file() and made.log.read_text().endswith("\n")

    with pytest.raises(Interrupted):
        made.run(ended)
    assert not alive(int(made.log.read_text().split()[0]))


def test_signal_is_heeded_and_old_handlers_come_back():
    before = [signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with heeding_signals() as ended:
            assert not ended()
            os.kill(os.getpid(), number)
            assert ended()
    assert [signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_second_signal_leaves_a_blocks_cleanup_alone():
    """The first signal ends a block and a second leaves its clean up alone."""
    before, cleaned = signal.getsignal(signal.SIGTERM), []

    def work():
        with ending_at_signals():
            try:
                os.kill(os.getpid(), signal.SIGINT)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                cleaned.append(True)

    with pytest.raises(Interrupted):
        work()
    assert cleaned == [True]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_lost_parent_is_noticed(tmp_path):
    """A process whose parent is killed outright gets no signal."""
    inner = (
        "import time, pathlib\n"
        "from control.common.child_playbooks import heeding_signals\n"
        f"out = pathlib.Path({str(tmp_path)!r}) / 'said'\n"
        "with heeding_signals() as ended:\n"
        "    out.write_text(str(ended()))\n"
        "    until = time.monotonic() + 20\n"
        "    while not ended() and time.monotonic() < until: time.sleep(0.02)\n"
        "    out.write_text(f'ended {ended()}')\n"
    )
    outer = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {inner!r}]); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", outer], env={**os.environ, "PYTHONPATH": str(child_playbooks.project.ROOT)})
    message = tmp_path / "said"
    await_until(lambda: message.is_file() and message.read_text() == "False", 60, "watching")
    parent.kill()
    parent.wait()
    await_until(lambda: message.read_text() == "ended True", 60, "noticed")


def test_how_hosts_are_reached_is_passed_on(tmp_path, monkeypatch):
    given = {"inventory": ("inventory/lab", "more"), "remote_user": "pi", "private_key_file": None, "timeout": 0, "forks": 50}
    monkeypatch.setattr(context, "CLIARGS", CLIArgs({**given, "vault_ids": ["v"]}))
    argv = Playbook("playbooks/stages/trial.yml", {}, tmp_path / "x.log")._argv("/tmp/v.json")
    assert argv[1:] == [
        *("-m", "ansible", "playbook", "-i", "inventory/lab", "-i", "more", "--vault-id", "v", "--user", "pi", "--forks", "50"),
        *("-e", "@/tmp/v.json", "playbooks/stages/trial.yml"),
    ]


def test_variables_are_handed_over_in_a_private_file(tmp_path, monkeypatch):
    code = "import os,sys; print(oct(os.stat(sys.argv[1]).st_mode & 0o777), open(sys.argv[1]).read(), sys.argv[1])"
    monkeypatch.setattr(Playbook, "_argv", lambda self, variables: [sys.executable, "-c", code, variables])
    made = Playbook("x.yml", {"ansible_become_pass": "secret"}, tmp_path / "x.log")
    assert made.run(lambda: False) == 0
    mode, *message, path = made.log.read_text().split()
    assert (mode, " ".join(message)) == ("0o600", '{"ansible_become_pass": "secret"}')
    assert not os.path.exists(path)
    assert made.log.stat().st_mode & 0o007 == 0, "its log shows what it was about"


@pytest.mark.parametrize(("name", "option"), [("ask_pass", "-k"), ("ask_vault_pass", "--ask-vault-pass")])
def test_questions_are_refused(name, option, monkeypatch):
    monkeypatch.setattr(context, "CLIARGS", CLIArgs({name: True}))
    with pytest.raises(LockstepError, match=f"^{option}: this command starts others, which can't ask for a password; use an SSH key"):
        child_playbooks.refuse_questions()
    monkeypatch.setattr(context, "CLIARGS", CLIArgs({name: False}))
    child_playbooks.refuse_questions()
