"""Fine-tuning: only the last layers train."""

import keras
import numpy as np
import pytest

from control.common import configurations
from trainer.common.errors import ConfigError
from trainer.data.spec import of_images
from trainer.step import build_step

SIZE = (32, 32, 3)


def built(last: int | None, name: str = "task_cnn") -> keras.Model:
    config = configurations.build({"model": {"name": name}, "data": {"image_size": list(SIZE)}, "train": {"last_layers": last}})
    return build_step.build_model(config, 10, of_images(SIZE))[0]


def test_last_layers_train_and_others_keep_their_weights():
    whole, head = built(None), built(1)
    assert head.count_params() == whole.count_params()
    assert [variable.path for variable in head.trainable_variables] == [one.path for one in head.layers[-1].trainable_weights]
    assert len(built(2).trainable_variables) == 4 < len(whole.trainable_variables)


def test_batch_normalisation_of_frozen_layer_keeps_its_statistics():
    model = built(1, "resnet_small")
    before = [layer.get_weights() for layer in model.layers[:-1]]
    model(np.random.default_rng(0).integers(0, 255, (4, *SIZE)).astype(np.float32), training=True)
    for layer, weights in zip(model.layers[:-1], before, strict=True):
        for one, other in zip(layer.get_weights(), weights, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_model_with_fewer_layers_is_refused():
    with pytest.raises(ConfigError, match=r"train.last_layers=40: the model has \d+ layers with weights that train. Fix: at most"):
        built(40)
