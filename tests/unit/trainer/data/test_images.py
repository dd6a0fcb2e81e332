"""Decoding image files and fitting them to a model's input size."""

import io

import numpy as np
import pytest
from PIL import Image

from trainer.data.images import decode, fit, fit_batch


def colours():
    """Four flat squares: red, green, blue, white."""
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:16, :16], pixels[:16, 16:], pixels[16:, :16], pixels[16:, 16:] = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
    return pixels


def saved(image, kind, **options):
    stream = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(stream, kind, **options)
    return stream.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF"])
def test_lossless_formats_give_the_very_pixels(kind):
    actual = decode(saved(colours(), kind))
    assert actual.dtype == np.uint8
    assert np.array_equal(actual, colours())


def test_jpeg_gives_nearly_the_pixels():
    actual = decode(saved(colours(), "JPEG", quality=95))
    assert actual.shape == (32, 32, 3)
    assert np.abs(actual.astype(int)[4:12, 4:12] - (255, 0, 0)).max() < 12


@pytest.mark.parametrize("kind", ["PNG", "BMP", "JPEG"])
def test_grey_has_one_channel(kind):
    actual = decode(saved(np.full((5, 7), 90, np.uint8), kind))
    assert actual.shape == (5, 7, 1)
    assert np.abs(actual.astype(int) - 90).max() <= 1


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.new("1", (3, 2), 1), [[[255]] * 3] * 2),
        (Image.new("RGBA", (1, 1), (10, 20, 30, 0)), [[[10, 20, 30]]]),
        (Image.new("LA", (1, 1), (40, 0)), [[[40]]]),
        (np.array([[0, 257, 257 * 128, 65535]], np.uint16), [[[0], [1], [128], [255]]]),
        (Image.fromarray(colours()).quantize(8), colours().tolist()),
    ],
    ids=["black and white", "transparent", "transparent grey", "16 bits", "palette"],
)
def test_every_mode_becomes_grey_or_colour(image, expected):
    assert decode(saved(image, "PNG")).tolist() == expected


def test_first_frame_of_an_animation():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    actual = decode(saved(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    assert actual.tolist() == [[[255, 0, 0]] * 4] * 4


def test_exif_orientation_turns_upright():
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.zeros((2, 3, 3), np.uint8)
    pixels[0, 0] = 255
    actual = decode(saved(pixels, "PNG", exif=exif))
    assert actual.shape == (3, 2, 3)
    assert actual[0, 1].tolist() == [255, 255, 255]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP"])
def test_truncated_file_is_refused_with_a_reason(kind):
    data = saved(np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8), kind)
    with pytest.raises(ValueError, match=r"\w+") as caught:
        decode(data[: len(data) // 2])
    assert "trunc" in str(caught.value) or "not processed" in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"just words\n", b"II*\0" + b"\0" * 40, b"%PDF-1.4", saved(colours(), "TIFF")])
def test_other_files_are_refused_with_a_reason(data):
    with pytest.raises(ValueError, match=r"^not a JPEG, PNG, BMP or GIF$"):
        decode(data)


def test_picture_that_would_fill_memory_is_refused(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match="exceeds limit of 200 pixels"):
        decode(saved(colours(), "PNG"))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_fitting_image_stays_as_it_is(channels):
    image = np.random.default_rng(0).integers(0, 256, (32, 32, channels)).astype(np.uint8)
    assert np.array_equal(fit(image, (32, 32, channels)), image)


@pytest.mark.parametrize(("height", "width", "top", "left"), [(28, 28, 2, 2), (29, 31, 1, 0), (17, 32, 7, 0)])
def test_slightly_smaller_image_is_padded_in_middle(height, width, top, left):
    image = np.random.default_rng(0).integers(1, 256, (height, width, 1)).astype(np.uint8)
    actual = fit(image, (32, 32, 1))
    assert actual.shape == (32, 32, 1)
    assert np.array_equal(actual[top : top + height, left : left + width], image)
    assert actual.astype(int).sum() == image.astype(int).sum()


@pytest.mark.parametrize(("height", "width"), [(100, 60), (16, 16), (33, 33), (28, 60), (3, 3), (1, 1)])
def test_other_sizes_are_resized(height, width):
    actual = fit(np.full((height, width, 3), (10, 200, 30), np.uint8), (32, 32, 3))
    assert actual.tolist() == [[[10, 200, 30]] * 32] * 32


def test_resizing_averages_neighbours():
    stripes = np.zeros((64, 64, 1), np.uint8)
    stripes[:, ::2] = 200
    assert np.abs(fit(stripes, (8, 8, 1)).astype(int) - 100).max() <= 10


@pytest.mark.parametrize(
    ("colour", "channels", "expected"),
    [((7,), 3, [7, 7, 7]), ((255, 0, 0), 1, [76]), ((0, 255, 0), 1, [150]), ((0, 0, 255), 1, [29]), ((255, 255, 255), 1, [255])],
)
def test_grey_is_repeated_and_colour_becomes_luma(colour, channels, expected):
    assert fit(np.full((4, 4, len(colour)), colour, np.uint8), (4, 4, channels)).tolist() == [[expected] * 4] * 4


@pytest.mark.parametrize("size", [(32, 32, 3), (32, 32, 1), (8, 9, 3)])
@pytest.mark.parametrize("shape", [(32, 32, 3), (28, 28, 1), (28, 30, 3), (64, 50, 3), (5, 5, 1)])
def test_a_batch_is_fitted_as_its_images_are(shape, size):
    images = np.random.default_rng(0).integers(0, 256, (3, *shape)).astype(np.uint8)
    assert np.array_equal(fit_batch(images, size), np.stack([fit(image, size) for image in images]))
