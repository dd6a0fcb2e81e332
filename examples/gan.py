"""A generative adversarial network: points around a ring of eight centres, from noise.

    ansible-playbook train.yml -e model=examples/gan.py:build -e dataset=examples/gan.py:data -e run=gan \
      -e epochs=40 -e set=train.batch_size=64,train.monitor=near

Expected after 40 epochs on two workers: 0.79 of the generated points are near a centre (epoch 1: 0.05); 21 s.

Its `train_step` has two optimizers, and the model has no loss, so there is no validation. Goodfellow et al. 2014, arXiv:1406.2661.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

NOISE = 8
ANGLES = np.arange(8) * np.pi / 4
CENTRES = 2 * np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1).astype("float32")


@keras.saving.register_keras_serializable("examples")
class GAN(keras.Model):
    """A generator and a discriminator, trained in turns."""

    def __init__(self, width=64, **options):
        super().__init__(**options)
        self.width = width
        hidden = {"activation": "relu", "kernel_initializer": "he_normal"}
        self.generator = keras.Sequential([layers.Dense(width, **hidden), layers.Dense(width, **hidden), layers.Dense(2)])
        self.discriminator = keras.Sequential([layers.Dense(width, **hidden), layers.Dense(width, **hidden), layers.Dense(1)])
        self.seeds = keras.random.SeedGenerator(1)

    def get_config(self):
        """Constructor arguments from which Keras rebuilds the model of a snapshot."""
        return {**super().get_config(), "width": self.width}

    def compile(self, generator_optimizer, discriminator_optimizer):
        """An optimizer for each network."""
        super().compile()
        self.generator_optimizer, self.discriminator_optimizer = generator_optimizer, discriminator_optimizer

    def call(self, points):
        """How genuine points look, and as many generated ones."""
        noise = keras.random.normal((ops.shape(points)[0], NOISE), seed=self.seeds)
        return self.discriminator(points), self.generator(noise)

    def train_step(self, data):
        """The discriminator, then the generator; `near` is the part of the generated points close to a centre."""
        (points,) = data
        error = keras.losses.BinaryCrossentropy(from_logits=True)
        with tf.GradientTape(persistent=True) as tape:
            genuine, generated = self(points)
            judged = self.discriminator(generated)
            discriminator = (error(ops.ones_like(genuine), genuine) + error(ops.zeros_like(judged), judged)) / 2
            generator = error(ops.ones_like(judged), judged)
        for loss, network, optimizer in (
            (discriminator, self.discriminator, self.discriminator_optimizer),
            (generator, self.generator, self.generator_optimizer),
        ):
            weights = network.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
        nearest = ops.min(ops.norm(generated[:, None] - CENTRES, axis=-1), axis=-1)
        return {"discriminator": discriminator, "generator": generator, "near": ops.mean(ops.cast(nearest < 0.3, "float32"))}


def build(width=64, learning_rate=2e-3):
    """The model, compiled with its optimizers."""
    model = GAN(width)
    model.compile(keras.optimizers.Adam(learning_rate, beta_1=0.5), keras.optimizers.Adam(learning_rate, beta_1=0.5))
    return model


def data(split):
    """Points alone."""
    if split == "validation":
        return None
    random = np.random.default_rng(0 if split == "train" else 1)
    centres = CENTRES[random.integers(0, 8, 8192 if split == "train" else 1024)]
    return (random.normal(centres, 0.1),)
