"""Crops, shifts, turns, colours, mixup and label smoothing: what is drawn, and that it follows from seed, step and place alone."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.config.schema import Augment
from trainer.step import image_augmentation
from trainer.step.batch_arrays import full

IMAGES = np.random.default_rng(0).integers(0, 256, (1, 12, 4, 4, 3)).astype(np.uint8)
LABELS = (np.arange(12, dtype=np.int32) % 3)[None]
OTHERS = np.roll(np.arange(12), 1)


def seen(batch, classes=3, smoothing=0.0, **options):
    """What a model would be given."""
    return [np.asarray(part) for part in image_augmentation.make_augmentation(Augment(**options), 5, classes, smoothing)(batch)]


def single(images=IMAGES):
    return full((images, LABELS)).at(0)


def paired(weights=False):
    data = [[IMAGES, IMAGES[:, OTHERS]], [LABELS, LABELS[:, OTHERS]]]
    scale = np.arange(1, 13, dtype=np.float32)[None]
    return full(tuple([*data, [scale, scale[:, OTHERS]]] if weights else data)).at(0)


def part(batch, places):
    """What a worker has of a batch."""
    data = tf.nest.map_structure(lambda array: array[places], batch.data)
    return batch._replace(data=data, places=batch.places[places], weights=batch.weights[places])


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_colours_change_by_at_most_what_was_asked(name):
    batch = single(np.clip(IMAGES, 100, 140))
    images, labels = seen(batch, **{name: 0.5})
    pixels, grey = batch.data[0].astype(np.float64), batch.data[0] @ np.array(image_augmentation.LUMA)
    middle = {"brightness": 0, "contrast": grey.mean(axis=(1, 2))[:, None, None, None], "saturation": grey[..., None]}[name]
    drawn = image_augmentation._draws(5, batch, image_augmentation.COLOURS, image_augmentation.HUES).numpy()
    factors = 0.5 + drawn[:, ["brightness", "contrast", "saturation"].index(name)]
    np.testing.assert_allclose(images, middle + (pixels - middle) * factors[:, None, None, None], rtol=1e-4)
    assert len(set(factors)) == 12
    assert labels is not LABELS
    assert labels.tolist() == LABELS[0].tolist()


def test_colours_stay_within_the_range_of_pixels():
    images, _ = seen(single(), brightness=1.0, contrast=1.0, saturation=1.0)
    assert (images.min(), images.max()) >= (0, 200)
    assert images.max() <= 255


def test_a_grey_image_has_brightness_and_contrast():
    images, _ = seen(single(IMAGES[..., :1]), brightness=0.2, contrast=0.2)
    assert images.shape == (12, 4, 4, 1)


def test_mixup_mixes_images_labels_and_weights_alike():
    batch = paired(weights=True)
    images, labels, weights = seen(batch, mixup=0.4)
    fraction = image_augmentation._fractions(0.4, 5, batch).numpy()
    assert 0 <= fraction.min() < fraction.max() <= 1
    for number in range(12):
        other, own = int(OTHERS[number]), float(fraction[number])
        mixed = IMAGES[0, number] * own + IMAGES[0, other] * (1 - own)
        np.testing.assert_allclose(images[number], mixed, atol=1e-3)
        np.testing.assert_allclose(labels[number], np.eye(3)[number % 3] * own + np.eye(3)[other % 3] * (1 - own), atol=1e-6)
        assert weights[number] == pytest.approx((number + 1) * own + (other + 1) * (1 - own), rel=1e-5)


@pytest.mark.parametrize("alpha", [0.001, 0.2, 1.0, 50.0])
def test_shares_are_of_a_beta_distribution(alpha):
    many = full((np.zeros((1, 4000, 1)), np.zeros((1, 4000), np.int32))).at(0)
    drawn = image_augmentation._fractions(alpha, 7, many).numpy()
    assert np.isfinite(drawn).all()
    # Where alpha is so small that both gammas are zero, the partner, itself drawn at random, takes all.
    assert drawn.mean() == pytest.approx(0.5, abs=0.03) or alpha < 0.01
    assert (drawn * (1 - drawn)).mean() == pytest.approx(0.5 * alpha / (2 * alpha + 1), abs=0.02)


def test_smoothed_labels_add_up_to_1():
    _, smooth = seen(single(), smoothing=0.3)
    np.testing.assert_allclose(smooth, np.eye(3)[LABELS[0]] * 0.7 + 0.1, atol=1e-6)
    _, mixed = seen(paired(), smoothing=0.3, mixup=0.2)
    np.testing.assert_allclose(mixed.sum(axis=1), 1, atol=1e-6)
    assert mixed.min() >= 0.1 - 1e-6


@pytest.mark.parametrize(
    "options",
    [
        {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "crop": 1},
        {"mixup": 0.2, "flip": True},
        {"crop": 2, "flip": True},
        {"shift": 0.25},
        {"shift": 0.1, "rotate": 20, "scale": [0.5, 2.0]},
    ],
    ids=", ".join,
)
def test_draws_follow_from_seed_step_and_place_alone(options):
    batch, places = paired() if "mixup" in options else single(), np.arange(5, 9)
    whole, piece = seen(batch, **options), seen(part(batch, places), **options)
    for one, other in zip(whole, piece, strict=True):
        assert np.array_equal(one[places], other)
    assert not np.array_equal(whole[0], seen(batch._replace(number=np.int32(1)), **options)[0])


def test_partners_are_augmented_on_their_own():
    same = np.repeat(IMAGES[:, :1], 12, axis=1)
    batch = full(([same, same], [LABELS, LABELS])).at(0)
    images, _ = seen(batch, mixup=50.0, brightness=0.5)
    drawn = [
        image_augmentation._draws(5, batch, image_augmentation.COLOURS, image_augmentation.HUES + partner).numpy()[:, 0]
        for partner in range(2)
    ]
    assert not np.array_equal(*drawn)
    assert len({image.tobytes() for image in images}) == 12


MANY = np.tile(np.random.default_rng(0).integers(0, 256, (8, 8, 1), dtype=np.uint8), (1, 300, 1, 1, 1))
"""One image, as often as there are ways to move it and more."""


def moved(**options):
    """What becomes of it: bytes, where pixels only move."""
    images, _ = seen(full((MANY, np.zeros((1, 300), np.int32))).at(0), **options)
    assert images.dtype == np.uint8
    return {image.tobytes() for image in images}


def test_crops_are_all_windows_of_both_images():
    """Of the padded image, and of its mirror image."""
    padded = [np.pad(image, ((2, 2), (2, 2), (0, 0))) for image in (MANY[0, 0], MANY[0, 0][:, ::-1])]
    windows = {whole[row : row + 8, column : column + 8].tobytes() for whole in padded for row in range(5) for column in range(5)}
    assert len(windows) == 50
    assert moved(crop=2, flip=True) == windows


def test_shifts_are_by_whole_pixels_with_border_repeated():
    rows = [np.clip(np.arange(8) + by, 0, 7) for by in range(-2, 3)]
    assert moved(shift=0.25) == {MANY[0, 0][down][:, right].tobytes() for down in rows for right in rows}


def test_image_turned_about_its_middle_keeps_its_brightness():
    turned, _ = seen(full((MANY, np.zeros((1, 300), np.int32))).at(0), rotate=180.0)
    assert turned.dtype == np.float32
    assert np.abs(turned.mean(axis=(1, 2, 3)) - MANY.mean()).mean() < 15


def test_nothing_asked_for_is_nothing_done():
    assert image_augmentation.make_augmentation(Augment(), 1) is None
    np.testing.assert_array_equal(seen(single(), scale=[1.0, 1.0])[0], IMAGES[0])
