"""Augmentation of training images and labels, drawn from (seed, step) and an image's position in the global batch.

One affine transform per image, then its colours, then mixup with another image of the global batch.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.config.schema import Augment, Config
from trainer.data.batch import Batch

DRAWS = 5
"""Numbers drawn per image: row, column, mirroring, angle, scale."""
COLOURS = 3
"""Numbers drawn per image: brightness, contrast, saturation."""
PLACES, HUES, MIXES = 0, 2, 4
"""Streams of a step's random numbers; an image's partner in mixup uses the next stream."""
APART = 2**40
"""Distance between two streams, in steps."""
LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in luma (ITU-R 601)."""
MOVING = ("crop", "flip", "shift", "rotate", "scale")
COLOURING = ("brightness", "contrast", "saturation")


def soft(config: Config) -> bool:
    """Return whether training labels become probabilities `[classes]`."""
    return bool(config.augment.mixup or config.train.label_smoothing)


def one_hot(classes: int, data: tuple[Any, ...]) -> tuple[Any, ...]:
    """The data with labels as probabilities, the form for the loss if labels are `soft`."""
    images, labels, *weights = data
    return images, tf.one_hot(labels, classes), *weights


def make_augmentation(config: Augment, seed: int, classes: int = 0, smoothing: float = 0.0) -> Callable[[Batch], tuple[Any, ...]] | None:
    """Make the function that augments a batch as configured; None if nothing is set.

    It returns the batch's data. Images stay uint8 if pixels only move, and become float32 otherwise.

    Args:
        config: augmentation; with `mixup`, all data come in pairs, `[image, partner]`.
        seed: the run's seed.
        classes: number of classes; needed for soft labels.
        smoothing: `train.label_smoothing`.
    """
    if config == Augment() and not smoothing:
        return None

    def smoothed(hot: tf.Tensor) -> tf.Tensor:
        return hot * (1 - smoothing) + smoothing / classes if smoothing else hot

    def augment(batch: Batch) -> tuple[Any, ...]:
        images, labels, *weights = batch.data
        if not config.mixup:
            return _changed(config, seed, batch, images), smoothed(tf.one_hot(labels, classes)) if smoothing else labels, *weights
        fraction = _fractions(config.mixup, seed, batch)
        seen = [_changed(config, seed, batch, image, partner) for partner, image in enumerate(images)]
        hot = [tf.one_hot(label, classes) for label in labels]
        return _mixed(fraction, seen), smoothed(_mixed(fraction, hot)), *(_mixed(fraction, pair) for pair in weights)

    return augment


def _changed(config: Augment, seed: int, batch: Batch, images: tf.Tensor, partner: int = 0) -> tf.Tensor:
    """Images `[batch, height, width, channels]`, moved and coloured; with `partner` 1, the images that are mixed into others."""
    if any(getattr(config, name) for name in MOVING):
        images = _moved_images(config, _draws(seed, batch, DRAWS, PLACES + partner), images)
    if any(getattr(config, name) for name in COLOURING):
        images = _coloured(config, _draws(seed, batch, COLOURS, HUES + partner), tf.cast(images, tf.float32))
    return images


def _moved_images(config: Augment, drawn: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
    """Transform each image."""
    smooth = bool(config.rotate or config.scale)
    pixels = tf.cast(images, tf.float32) if smooth else images
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=pixels,
        transforms=_transforms(config, drawn, images.shape[1], images.shape[2]),
        output_shape=images.shape[1:3],
        interpolation="BILINEAR" if smooth else "NEAREST",
        fill_mode="CONSTANT" if config.crop or smooth else "NEAREST",
        fill_value=0.0,
    )


def _coloured(config: Augment, drawn: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
    """Change brightness, contrast and saturation, in this order as in torchvision's ColorJitter, of float images from 0 to 255."""
    factors = 1 + (drawn * 2 - 1) * tf.constant([getattr(config, name) for name in COLOURING])
    brightness, contrast, saturation = (factors[:, number, None, None, None] for number in range(COLOURS))
    if config.brightness:
        images = tf.clip_by_value(images * brightness, 0.0, 255.0)
    if config.contrast:
        images = _apart(images, tf.reduce_mean(_grey(images), axis=[1, 2, 3], keepdims=True), contrast)
    return _apart(images, _grey(images), saturation) if config.saturation else images


def _grey(images: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(images * tf.constant(LUMA), axis=-1, keepdims=True) if images.shape[-1] == len(LUMA) else images


def _apart(images: tf.Tensor, middle: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value(middle + (images - middle) * factor, 0.0, 255.0)


def _fractions(alpha: float, seed: int, batch: Batch) -> tf.Tensor:
    """Fractions of each image's own values in mixup, drawn from Beta(alpha, alpha), `[batch]`."""
    drawn = tf.random.stateless_gamma([tf.cast(batch.total, tf.int32), 2], _seed(seed, batch, MIXES), alpha=alpha)
    # TensorFlow returns the least normal number for any smaller one. If a small alpha reduces both to it, the partner gets all weight.
    drawn -= np.finfo(np.float32).tiny
    return tf.gather(tf.math.divide_no_nan(drawn[:, 0], drawn[:, 0] + drawn[:, 1]), batch.places)


def _mixed(fraction: tf.Tensor, pair: list[tf.Tensor]) -> tf.Tensor:
    """The mean of `[batch, ...]` and its partners, weighted with `fraction` `[batch]`."""
    own, other = (tf.cast(one, tf.float32) for one in pair)
    part = tf.reshape(fraction, [-1, *[1] * (len(own.shape) - 1)])
    return own * part + other * (1 - part)


def _draws(seed: int, batch: Batch, count: int = DRAWS, stream: int = PLACES) -> tf.Tensor:
    """Random numbers from 0 to 1, `[batch, count]`."""
    numbers = tf.random.stateless_uniform([tf.cast(batch.total, tf.int32), count], _seed(seed, batch, stream))
    return tf.gather(numbers, batch.places)


def _seed(seed: int, batch: Batch, stream: int) -> tf.Tensor:
    return tf.stack([tf.constant(seed, tf.int64), tf.cast(batch.number, tf.int64) + stream * APART])


def _transforms(config: Augment, drawn: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Transforms from pixels of the result to pixels of the image, `[batch, 8]`, as `ImageProjectiveTransformV3` takes them."""
    row, column, mirrored, turn, size = tf.unstack(drawn, axis=1)
    angle = (turn * 2 - 1) * math.radians(config.rotate)
    least, most = config.scale or (1.0, 1.0)
    factor = 1 / (least + size * (most - least))
    cosine, sine = tf.cos(angle) * factor, tf.sin(angle) * factor
    side = tf.where(mirrored < 0.5, -1.0, 1.0) if config.flip else tf.ones_like(mirrored)
    middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
    # Around the middle: mirrored, then rotated and scaled, then moved.
    moved_x = _moved(config, column, width) + middle_x - side * (cosine * middle_x - sine * middle_y)
    moved_y = _moved(config, row, height) + middle_y - sine * middle_x - cosine * middle_y
    zeros = tf.zeros_like(row)
    return tf.stack([side * cosine, -side * sine, moved_x, sine, cosine, moved_y, zeros, zeros], axis=1)


def _moved(config: Augment, drawn: tf.Tensor, pixels: int) -> tf.Tensor:
    """Whole pixels by which images are moved along a side of length `pixels`."""
    far = config.crop + math.floor(config.shift * pixels)
    return tf.floor(drawn * (2 * far + 1)) - far
