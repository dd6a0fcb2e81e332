"""What the header of an image file says, without decoding the image."""

import io

from PIL import Image

from trainer.data.images import FORMATS, GREY

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif"})

ORIENTATION, LYING = 0x0112, 5
"""EXIF's tag, and its first value that swaps height and width."""


def stated_size(data: bytes) -> tuple[int, int]:
    """Width and height that an image file's header states; (0, 0) if it is none that `decode` reads. Nothing is decoded."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return image.size
    except Exception:  # `decode` says what is wrong
        return 0, 0


def shape_of(data: bytes) -> tuple[int, int, int]:
    """Height, width and channels that `decode` would return, from the file's header alone; ValueError if it is no image."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            turned = image.getexif().get(ORIENTATION, 1) >= LYING
            channels = 1 if image.mode.startswith("I") or image.mode in GREY else 3
    except Exception as error:
        raise ValueError(str(error)) from None
    return (width, height, channels) if turned else (height, width, channels)
