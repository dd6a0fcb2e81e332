"""Any Keras program on two workers with uneven shares of each batch, against Keras' own `fit` on one worker with the whole batch."""

import numpy as np
import pytest

from tests.follow_fit import train_pair
from tests.keras_programs import PROGRAMS, by_fit, weights
from trainer import keras_metrics


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """By rank: weights and states of metrics of each program after training on two workers."""
    return train_pair(tmp_path_factory.mktemp("pair"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_workers_train_as_one(trained, name):
    first, second = (arrays[f"{name}/weights"] for arrays in trained)
    assert np.array_equal(first, second), "both workers have the same bits"
    alone = by_fit(name)
    np.testing.assert_allclose(first, weights(alone), rtol=1e-4, atol=1e-5)
    count = len(keras_metrics.states(alone))
    states = [np.ravel(sum(arrays[f"{name}/{number}"] for arrays in trained)) for number in range(count)]
    expected = {metric: float(value) for metric, value in alone.get_metrics_result().items()}
    if keras_metrics.loss_count(alone) is not None and not keras_metrics.loss_count(alone).numpy():
        del expected["loss"]  # Keras says 0 of a loss that a step of the model's own never counted.
    alone.reset_metrics()
    assert keras_metrics.Results(alone)(np.concatenate(states)) == pytest.approx(expected, rel=1e-4)
