"""How the message of a process of ours is found in what it wrote."""

import pytest

from trainer.errors import refusal


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("error: model=m.py:build: no", "model=m.py:build: no"),
        ("chatter\nerror: one\n\ntwo\n  three\n", "one\n\ntwo\n  three"),
        ("error: old\nerror: new\n", "new"),
        ("a layer's own error: is none of ours", ""),
        ("", ""),
    ],
)
def test_the_last_message_is_found_whole(said, message):
    assert refusal(said) == message
