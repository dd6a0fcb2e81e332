"""Any Keras program on two workers that share each batch unevenly, against Keras' own `fit` on one worker with the whole batch."""

import numpy as np
import pytest

from tests.follow_fit import train
from tests.keras_programs import PROGRAMS
from tests.project import EXHAUSTIVE

STEPS = 20
"""Enough for a whole period of accumulation, averaging and warm-up, and for steps after the one in which a worker has no rows."""

FURTHER = EXHAUSTIVE("trainer/keras_step/whole_batch.py", "trainer/keras_step/additive.py", "requirements")
"""For programs whose like `tests/unit/trainer/keras_step/test_as_fit.py` and the oracle try, as threads of one process and in float64."""
ALWAYS = ("adafactor", "muon", "global_clipnorm", "moving_average", "accumulation", "loss_scale", "two_inputs", "masked", "adversarial")
NAMES = [pytest.param(name, marks=() if name in ALWAYS else FURTHER) for name in PROGRAMS]


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """Weights and metrics of each program that is tested: on rank 0, on rank 1, alone."""
    names = [item.callspec.params["name"] for item in request.session.items if item.module is request.module]
    return train(tmp_path_factory.mktemp("pair"), names, STEPS)


@pytest.mark.parametrize("name", NAMES)
def test_two_workers_train_as_one(trained, name):
    weights, (*metrics, alone) = zip(*[of(name, arrays) for arrays in trained], strict=True)
    assert np.array_equal(weights[0], weights[1]), "both workers have the same bits"
    np.testing.assert_allclose(weights[0], weights[2], rtol=1e-4, atol=1e-5)
    assert metrics == [pytest.approx(alone, rel=1e-4)] * 2


def of(name, arrays):
    """A program's weights, and its metrics by name."""
    own = {key.removeprefix(f"{name}/"): array for key, array in arrays.items() if key.startswith(f"{name}/")}
    return own.pop("weights"), {key: float(value) for key, value in own.items()}
