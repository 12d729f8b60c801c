"""Encoded image files: the cheap check of one, and decoding to RGB."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

MAX_NAME = 200  # characters of a path in a message: a data URL would fill the screen

# what PIL raises on a bad file; its AVIF decoder raises RuntimeError
BROKEN = (OSError, SyntaxError, ValueError, RuntimeError, Image.DecompressionBombError)


class Unreadable(Exception):
    """What is wrong with a row; whoever knows the file and the row's number makes a `BadRow` of it."""

    def __init__(self, kind: str, why: str, fix: str):
        super().__init__(why)
        self.kind, self.why, self.fix = kind, why, fix


def encoded_image(image: dict[str, Any] | str | None, path: Path) -> bytes:
    """The encoded image of one entry of a row's images: its bytes, else the file at its path, which is relative to the data file. A text
    is a path."""
    image = {"path": image} if isinstance(image, str) else image or {}
    data, where = image.get("bytes"), "an image"
    if data is None and image.get("path"):
        file = path.parent / image["path"]
        where = f"image {str(file)[:MAX_NAME]}"
        try:
            data = file.read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a null byte in the path
            why = f"{where} cannot be read: {getattr(error, 'strerror', None) or error}"
            raise Unreadable("image", why, "an image path is relative to its data file; copy the images beside it") from error
    if data is None:
        raise Unreadable("image", "an image has neither bytes nor path", "give it one of the two")
    if broken := verify_image(data):
        raise Unreadable("image", f"{where} is broken: {broken}", "replace the image or remove the row")
    return bytes(data)


def verify_image(data: bytes) -> str | None:
    """The reason why `data` is no readable image, or None. A PNG is not decoded: its checksums tell."""
    try:
        with Image.open(BytesIO(data)) as image:
            if image.format == "PNG":
                image.verify()
            else:
                image.draft(image.mode, (1, 1))  # a JPEG is then decoded at an eighth of its size
                image.load()
    except BROKEN as error:
        return reason(error)
    return None


def decode_rgb(data: bytes) -> Image.Image:
    """The image as RGB: rotated as its EXIF says, transparent parts on white, 16-bit grey scaled to 8 bits.

    Raises one of `BROKEN` when the bytes cannot be decoded.
    """
    with Image.open(BytesIO(data)) as file:
        image = ImageOps.exif_transpose(file)
        image.load()
    if image.mode.startswith("I;16"):  # PIL's own conversion clips at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert("RGB")


def reason(error: Exception) -> str:
    """One line about an error of `BROKEN`."""
    if isinstance(error, UnidentifiedImageError):  # its text is the address of a buffer
        return "its bytes are no image format that PIL knows"
    return str(error) or type(error).__name__
