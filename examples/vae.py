"""A variational autoencoder: two numbers for each picture of a blurred bar, from its place and its angle.

    ansible-playbook train.yml -e model=examples/vae.py:build -e dataset=examples/vae.py:data -e run=vae \
      -e evaluate=true -e epochs=12 -e set=train.batch_size=32

Expected after 12 epochs on two workers, on the test examples: squared error 7.1 per picture (the mean picture: 23.5); 36 s.

The loss is the model's own (`compute_loss`), and the data has no `y`. Kingma, Welling 2013, arXiv:1312.6114.
"""

import keras
import numpy as np
from keras import layers, ops

SIZE = 16


@keras.saving.register_keras_serializable("examples")
class VAE(keras.Model):
    """An encoder to the mean and the log variance of a code, and a decoder."""

    def __init__(self, code=2, width=64, **options):
        super().__init__(**options)
        self.code, self.width = code, width
        self.encoder = keras.Sequential([layers.Flatten(), layers.Dense(width, activation="relu"), layers.Dense(2 * code)])
        self.decoder = keras.Sequential(
            [layers.Dense(width, activation="relu"), layers.Dense(SIZE * SIZE, activation="sigmoid"), layers.Reshape((SIZE, SIZE))]
        )
        self.seeds = keras.random.SeedGenerator(1)
        self.error, self.divergence = keras.metrics.Mean("squared_error"), keras.metrics.Mean("divergence")

    def get_config(self):
        """Constructor arguments from which Keras rebuilds the model of a snapshot."""
        return {**super().get_config(), "code": self.code, "width": self.width}

    def call(self, pictures, training=False):
        """Pictures as decoded, mean and log variance of their codes."""
        mean, log_variance = ops.split(self.encoder(pictures), 2, axis=-1)
        noise = keras.random.normal(ops.shape(mean), seed=self.seeds) if training else 0.0
        return self.decoder(mean + noise * ops.exp(0.5 * log_variance)), mean, log_variance

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Squared error of decoding plus a tenth of the codes' divergence from a normal distribution; means over the pictures."""
        decoded, mean, log_variance = y_pred
        error = ops.sum(ops.square(x - decoded), axis=(1, 2))
        divergence = -0.5 * ops.sum(1 + log_variance - ops.square(mean) - ops.exp(log_variance), axis=-1)
        self.error.update_state(error)
        self.divergence.update_state(divergence)
        return ops.mean(error + 0.1 * divergence)


def build(code=2, width=64, learning_rate=3e-3):
    """The model, compiled with an optimizer only."""
    model = VAE(code, width)
    model.compile(optimizer=keras.optimizers.Adam(learning_rate))
    return model


def data(split):
    """Pictures alone."""
    if split == "validation":
        return None
    random = np.random.default_rng(0 if split == "train" else 1)
    count = 3000 if split == "train" else 600
    place, angle = random.uniform(-4, 4, (count, 1, 1)), random.uniform(-0.8, 0.8, (count, 1, 1))
    rows, columns = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2
    distance = columns * np.cos(angle) + rows * np.sin(angle) - place
    return (np.exp(-(distance**2) / 3),)
