"""Programs that once had other results on several workers than `fit` on one; `python -m tests.oracle` finds more."""

import json

import pytest
import yaml

from tests.oracle.__main__ import CASES
from tests.unit import forked

NAMES = [case["name"] for case in yaml.safe_load(CASES.read_text(encoding="utf-8"))]


@pytest.fixture(scope="module")
def differences():
    done = forked.run("-m", "tests.oracle", "--cases")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", NAMES)
def test_several_workers_train_as_fit_does(differences, name):
    """Weights, history, and what callbacks see."""
    assert not differences[name]
