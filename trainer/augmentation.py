"""Augmentation of training images: one affine transform per image, drawn from (seed, step) and its position in the global batch."""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer.config import Augment
from trainer.data.pipeline import Batch

DRAWS = 5
"""Numbers drawn per image: row, column, mirroring, angle, scale."""


def make(config: Augment, seed: int) -> Callable[[Batch], tuple[Any, ...]] | None:
    """A function that augments a batch of images as configured, to uint8 if pixels only move, else float32; None if nothing is set.

    It returns the batch's data, the images replaced.
    """
    if config == Augment():
        return None
    smooth = bool(config.rotate or config.scale)

    def augment(batch: Batch) -> tuple[Any, ...]:
        pixels, *others = batch.data
        images = tf.cast(pixels, tf.float32) if smooth else pixels
        augmented = tf.raw_ops.ImageProjectiveTransformV3(
            images=images,
            transforms=transforms(config, draws(seed, batch), images.shape[1], images.shape[2]),
            output_shape=images.shape[1:3],
            interpolation="BILINEAR" if smooth else "NEAREST",
            fill_mode="CONSTANT" if config.crop or smooth else "NEAREST",
            fill_value=0.0,
        )
        return augmented, *others

    return augment


def draws(seed: int, batch: Batch) -> tf.Tensor:
    """Random numbers from 0 to 1, `[batch, DRAWS]`."""
    everywhere = tf.cast(batch.total, tf.int32)
    numbers = tf.random.stateless_uniform([everywhere, DRAWS], tf.stack([tf.constant(seed, tf.int64), tf.cast(batch.number, tf.int64)]))
    return tf.gather(numbers, batch.places)


def transforms(config: Augment, drawn: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Transforms from pixels of the result to pixels of the image, `[batch, 8]`, as `ImageProjectiveTransformV3` takes them."""
    row, column, mirrored, turn, size = tf.unstack(drawn, axis=1)
    angle = (turn * 2 - 1) * math.radians(config.rotate)
    least, most = config.scale or (1.0, 1.0)
    factor = 1 / (least + size * (most - least))
    cosine, sine = tf.cos(angle) * factor, tf.sin(angle) * factor
    side = tf.where(mirrored < 0.5, -1.0, 1.0) if config.flip else tf.ones_like(mirrored)
    middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
    # Around the middle: mirrored, then rotated and scaled, then moved.
    moved_x = moved(config, column, width) + middle_x - side * (cosine * middle_x - sine * middle_y)
    moved_y = moved(config, row, height) + middle_y - sine * middle_x - cosine * middle_y
    zeros = tf.zeros_like(row)
    return tf.stack([side * cosine, -side * sine, moved_x, sine, cosine, moved_y, zeros, zeros], axis=1)


def moved(config: Augment, drawn: tf.Tensor, pixels: int) -> tf.Tensor:
    """Whole pixels by which images are moved along a side of length `pixels`."""
    far = config.crop + math.floor(config.shift * pixels)
    return tf.floor(drawn * (2 * far + 1)) - far
