"""How a process ended."""

import pytest

from trainer import exits


@pytest.mark.parametrize(
    ("returned", "code", "name"), [(0, 0, ""), (3, 3, ""), (-9, 137, "SIGKILL"), (-15, 143, "SIGTERM"), (255, 255, "")]
)
def test_codes_are_those_of_a_shell(returned, code, name):
    assert exits.code_of(returned) == code
    assert exits.signal_of(code) == exits.signal_of(returned) == name
