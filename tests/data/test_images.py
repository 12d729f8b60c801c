"""Encoded images: the cheap check agrees with decoding, and every mode becomes the RGB that a person sees."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image, features

from tandem.data.images import BROKEN, decode_rgb, verify_image
from tests.data.files import encoded, picture

RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)


def flag() -> Image.Image:
    """3 x 2 pixels, each corner another colour."""
    image = Image.new("RGB", (3, 2), BLACK)
    image.putpixel((0, 0), RED)
    image.putpixel((2, 0), GREEN)
    image.putpixel((0, 1), BLUE)
    image.putpixel((2, 1), WHITE)
    return image


@pytest.mark.parametrize(
    ("mode", "kind", "options"),
    [
        ("RGB", "PNG", {}),
        ("RGBA", "PNG", {}),
        ("P", "PNG", {}),
        ("P", "GIF", {}),
        ("RGB", "BMP", {}),
        ("RGB", "TIFF", {}),
        ("RGB", "WEBP", {"lossless": True}),
        ("CMYK", "TIFF", {}),
    ],
)
def test_colours_survive_every_mode_without_loss(mode, kind, options):
    image = decode_rgb(encoded(flag().convert(mode), kind, **options))
    assert image.mode == "RGB"
    assert np.array_equal(np.asarray(image), np.asarray(flag()))


def test_a_cmyk_jpeg_has_the_colours_of_its_inks():
    image = decode_rgb(encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=100))
    assert image.mode == "RGB"
    assert np.abs(np.asarray(image).astype(int) - RED).max() <= 3


@pytest.mark.parametrize("mode", ["1", "L", "LA", "I;16"])
def test_grey_is_the_same_grey_in_all_channels(mode):
    levels = {"1": np.array([[0, 255]]), "L": np.array([[0, 77, 255]]), "LA": np.array([[0, 77, 255]]), "I;16": np.array([[0, 77, 255]])}[
        mode
    ]
    if mode == "I;16":
        source = Image.fromarray((levels * 257).astype(np.uint16))
        assert source.mode == "I;16"
    else:
        source = Image.fromarray(levels.astype(np.uint8)).convert(mode)
    decoded = np.asarray(decode_rgb(encoded(source)))
    assert np.array_equal(decoded, np.repeat(levels[..., None], 3, axis=2))


def test_transparent_parts_are_white_not_black():
    image = Image.new("RGBA", (3, 1))
    image.putpixel((0, 0), (255, 0, 0, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))
    image.putpixel((2, 0), (0, 0, 0, 128))
    assert np.asarray(decode_rgb(encoded(image))).tolist() == [[[255, 0, 0], [255, 255, 255], [127, 127, 127]]]
    palette = Image.new("P", (2, 1))
    palette.putpalette([0, 0, 0, 255, 0, 0])
    palette.putpixel((1, 0), 1)
    assert np.asarray(decode_rgb(encoded(palette, transparency=0))).tolist() == [[list(WHITE), list(RED)]]


@pytest.mark.parametrize(
    ("orientation", "turn"),
    [
        (1, lambda a: a),
        (2, lambda a: a[:, ::-1]),
        (3, lambda a: a[::-1, ::-1]),
        (4, lambda a: a[::-1]),
        (5, lambda a: a.swapaxes(0, 1)),
        (6, lambda a: np.rot90(a, -1)),
        (7, lambda a: a[::-1, ::-1].swapaxes(0, 1)),
        (8, lambda a: np.rot90(a)),
    ],
)
def test_a_photo_stands_upright_as_its_exif_says(orientation, turn):
    exif = Image.Exif()
    exif[0x0112] = orientation
    decoded = np.asarray(decode_rgb(encoded(flag(), "PNG", exif=exif)))
    assert np.array_equal(decoded, turn(np.asarray(flag())))


def kinds() -> list[str]:
    return ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", *(["AVIF"] if features.check("avif") else [])]


@pytest.mark.parametrize("kind", kinds())
def test_a_whole_image_passes_the_check(kind):
    assert verify_image(encoded(picture(40, 40), kind)) is None


@pytest.mark.parametrize("kind", kinds())
def test_a_truncated_image_fails_the_check_and_raises_when_decoded(kind):
    data = encoded(picture(40, 40, "P" if kind == "GIF" else "RGB"), kind)
    for cut in (1, len(data) // 4, len(data) // 2):
        assert verify_image(data[:cut]), f"{cut} of {len(data)} bytes"
        with pytest.raises(BROKEN):
            decode_rgb(data[:cut])


@pytest.mark.filterwarnings("ignore::UserWarning")  # PIL's, about the damage
@pytest.mark.parametrize("kind", kinds())
def test_damaged_bytes_raise_nothing_but_what_is_caught(kind):
    data, rng = encoded(picture(40, 40), kind), np.random.default_rng(0)
    num_refused = 0
    for _ in range(150):
        hurt = bytearray(data)
        for at in rng.integers(0, min(len(data), 400), 3):
            hurt[at] = rng.integers(256)
        try:
            decode_rgb(bytes(hurt))
        except BROKEN:
            num_refused += 1
        verify_image(bytes(hurt))
    assert num_refused > 0


def test_a_flipped_bit_in_a_png_is_found_without_decoding_it():
    data = bytearray(encoded(picture(40, 40)))
    data[data.index(b"IDAT") + 60] ^= 1
    assert "checksum" in verify_image(bytes(data)).lower() or "broken" in verify_image(bytes(data)).lower()


def test_an_image_too_huge_to_hold_is_refused_before_it_is_decoded():
    data = bytearray(encoded(Image.new("L", (1, 1))))
    data[16:24] = struct.pack(">II", 30_000, 30_000)  # width and height in the header
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    assert "900000000 pixels" in verify_image(bytes(data))
    with pytest.raises(BROKEN):
        decode_rgb(bytes(data))


def test_the_reason_of_something_else_is_no_address_in_memory():
    assert verify_image(b"<svg/>") == "its bytes are no image format that PIL knows"


def test_one_pixel_is_an_image():
    assert decode_rgb(encoded(Image.new("RGB", (1, 1), RED))).getpixel((0, 0)) == RED
