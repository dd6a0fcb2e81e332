"""Data and model of TensorFlow's tutorial "Multi-worker training with Keras", in our words; digits are generated, not fetched."""

import numpy as np
import tensorflow as tf


def mnist_dataset(batch_size):
    """Pictures of ten classes: a bright bar, one place for each class."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 10, 2000)
    pictures = generator.uniform(0, 120, (2000, 28, 28))
    pictures[np.arange(2000), 2 * labels + 4] += 130
    pictures = (pictures / 255).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((pictures, labels.astype(np.int64)))
    return dataset.shuffle(2000).repeat().batch(batch_size)


def build_and_compile_cnn_model():
    """A small convolutional network."""
    model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(shape=(28, 28)),
            tf.keras.layers.Reshape(target_shape=(28, 28, 1)),
            tf.keras.layers.Conv2D(8, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.05),
        metrics=["accuracy"],
    )
    return model
