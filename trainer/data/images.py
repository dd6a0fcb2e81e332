"""Decode image files and fit them to a model's input size. Pillow and NumPy only."""

import io

import numpy as np
from PIL import Image, ImageOps

FORMATS = ("JPEG", "PNG", "BMP", "GIF")
GREY = ("1", "L", "LA", "F")
"""Modes of grey images, besides those of 16 and 32 bits."""


def decode(data: bytes) -> np.ndarray:
    """Decode an image file to `[height, width, channels]` uint8, channels 1 (grey) or 3 (colour).

    Takes the first frame of an animation, turns it upright by its EXIF orientation and drops transparency. ValueError says why the
    bytes are not a complete JPEG, PNG, BMP or GIF.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            image.load()
            return _to_array(image)
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from None
    except MemoryError:
        raise
    except Exception as error:  # a damaged file makes Pillow raise nearly anything
        reason = "not a JPEG, PNG, BMP or GIF" if "cannot identify" in str(error) else str(error)
        raise ValueError(reason) from None


def _to_array(image: Image.Image) -> np.ndarray:
    # In place: an image of the largest size that Pillow reads takes 700 MB, and each copy as much again.
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I"):
        grey = np.asarray(image, dtype=np.int64)
        return (np.clip(grey, 0, 65535) // 257).astype(np.uint8)[..., None]
    if image.mode in GREY:
        return np.asarray(image.convert("L"))[..., None]
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def fit(image: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """Fit `[h, w, c]` uint8 to `size` `(height, width, channels)`."""
    return fit_batch(image[None], size)[0]


def fit_batch(images: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """Fit `[n, h, w, c]` uint8, all of one shape, to `[n, *size]`.

    Grey is repeated to colour, and colour is converted to grey (ITU-R 601 luma). An image smaller by less than half is padded with
    zeros around it; any other is resized (bilinear with antialiasing, aspect ratio not kept).
    """
    height, width, channels = size
    if channels > images.shape[-1]:
        images = np.repeat(images, 3, axis=-1)
    elif channels < images.shape[-1]:
        images = np.stack([np.asarray(Image.fromarray(image).convert("L"))[..., None] for image in images])
    if images.shape[1:] == size:
        return images
    rows, columns = height - images.shape[1], width - images.shape[2]
    if 0 <= rows < height / 2 and 0 <= columns < width / 2:
        return np.pad(images, ((0, 0), (rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2), (0, 0)))
    pictures = [Image.fromarray(image[..., 0] if channels == 1 else image) for image in images]
    resized = [np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR)) for picture in pictures]
    return np.stack(resized).reshape(-1, *size)
