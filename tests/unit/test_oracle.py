"""The oracle's command line, and its processes."""

import pytest

from tests.oracle.__main__ import arguments
from tests.unit import forked

SCRIPT = """
import json
import os

from tests.oracle import lanes


def found(program, shrinks):
    if program.seed == 2:
        os._exit(3)
    return lanes.Found(program.seed, "same", "", {})


lanes.found_of = found
print(json.dumps(sorted([one.seed, one.kind, one.text] for one in lanes.tried(range(5), 2, True))))
"""


REFUSED = """
import json

from tests.oracle.programs import of

messages = []
for program in ({"rowz": 3}, {"step": "nobody"}, {"body": ["dense", "dance"]}):
    try:
        of(program)
    except ValueError as error:
        messages.append(str(error))
print(json.dumps(messages))
"""


@pytest.mark.parametrize("given", [["--lanes", "0"], ["0"], ["--lanes", "two"]])
def test_a_number_below_one_is_refused(capsys, given):
    with pytest.raises(SystemExit) as ended:
        arguments(given)
    assert ended.value.code == 2
    assert given[-1] in capsys.readouterr().err


def test_a_process_that_ends_differs():
    """The programs behind it are tried by another."""
    same = [[seed, "same", ""] for seed in (0, 1, 3, 4)]
    assert forked.answer(SCRIPT) == sorted([*same, [2, "differs", "its process has ended with 3"]])


def test_a_program_that_is_none_is_refused():
    field, step, layer = forked.answer(REFUSED)
    assert field.startswith("rowz: no such field; there are: seed, rows, batch")
    assert step.startswith("step: 'nobody' is none of: own, noise")
    assert layer.startswith("body: 'dance' is none of: dense")
