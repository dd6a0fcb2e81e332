"""A model whose gradients are worth compressing, its data, and callbacks that end a worker, for `test_reduction.py`."""

import json
import os
import signal
from pathlib import Path

import keras
import numpy as np
from keras import layers

SIGNALS = {13: signal.SIGKILL, 27: signal.SIGTERM}
"""What rank 1 is sent after which step of the run, once each; an epoch has 10 steps, and a state is saved every 5."""
MARKS = "TEST_MARKS"
"""Environment variable: the folder with a file for each signal that was sent."""


def build():
    """Two matrices of 4,096 and 2,048 numbers."""
    model = keras.Sequential(
        [keras.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(32, activation="relu"), layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse")
    return model


def data(split):
    """Rows of 64 numbers; 160 for training."""
    if split == "validation":
        return None
    random = np.random.default_rng(len(split))
    x = random.normal(size=(200 if split == "train" else 40, 64))
    return x, x[:, :8].sum(axis=1)


class Signals(keras.callbacks.Callback):
    """Send this process signals, if it is rank 1."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] != 1:
            return
        for step, number in SIGNALS.items():
            mark = Path(os.environ[MARKS]) / str(step)
            if self.epoch * 10 + batch + 1 >= step and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), number)


def signals():
    return [Signals()]
