"""How the message of a process of ours is found in what it wrote, and how a process ended."""

import sys

import pytest

from trainer.command_line import CommandLine
from trainer.common.errors import FAILED, LockstepError, code_of, refusal, signal_of


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        ("error: model=m.py:build: no", "model=m.py:build: no"),
        ("chatter\nerror: one\n\ntwo\n  three\n", "one\n\ntwo\n  three"),
        ("error: old\nerror: new\n", "new"),
        ("a layer's own error: is none of ours", ""),
        ("", ""),
    ],
)
def test_the_last_message_is_found_whole(shown, message):
    assert refusal(shown) == message


def test_message_begins_on_line_of_its_own(capsys):
    def refused(_):
        print("reading 3 of 5", end="", file=sys.stderr)
        raise LockstepError("no such image")

    line = CommandLine("trainer", None)
    line.add("predict", refused)
    assert line.run(["predict"]) == FAILED
    assert refusal(capsys.readouterr().err) == "no such image"


@pytest.mark.parametrize(
    ("returned", "code", "name"), [(0, 0, ""), (3, 3, ""), (-9, 137, "SIGKILL"), (-15, 143, "SIGTERM"), (255, 255, "")]
)
def test_codes_are_those_of_a_shell(returned, code, name):
    assert code_of(returned) == code
    assert signal_of(code) == signal_of(returned) == name
