"""Small geometry diagrams, drawn here, with questions whose answers are computed from what was drawn.

Strokes are thick and sizes small, so that a model of half a million parameters can see them.
"""

import math

import numpy as np
from PIL import Image, ImageDraw

from tandem.data.demo.sample import Sample, encode_png

INK, GRID = (0, 0, 0), (205, 205, 205)
SMALL, LARGE = 32, 48  # pixels, multiples of 16: the processor resizes neither
TRIPLES = ((3, 4, 5), (6, 8, 10), (5, 12, 13), (9, 12, 15))


def geometry_samples(count: int, rng: np.random.Generator) -> list[Sample]:
    """`count` samples, all images different, the kinds in turn."""
    kinds = (polygon_sides, count_points, rectangle_area, rectangle_perimeter, hypotenuse)
    samples: list[Sample] = []
    seen: set[bytes] = set()
    while len(samples) < count:
        sample = kinds[len(samples) % len(kinds)](rng)
        if sample.image not in seen:
            seen.add(sample.image)
            samples.append(sample)
    return samples


def polygon_sides(rng: np.random.Generator) -> Sample:
    """A regular polygon of 3 to 6 sides, turned a little and moved at random."""
    sides = int(rng.integers(3, 7))
    image, draw = _canvas(SMALL)
    radius, turn = rng.uniform(12, 14), rng.uniform(-0.3, 0.3)
    x, y = rng.uniform(15, 17, size=2)
    angles = [turn + 2 * math.pi * i / sides for i in range(sides)]
    draw.polygon([(x + radius * math.cos(a), y + radius * math.sin(a)) for a in angles], fill=_fill(rng), outline=INK, width=2)
    return _sample(image, "How many sides are there?", sides, f"{sides}")


def count_points(rng: np.random.Generator) -> Sample:
    """One to five points, never touching."""
    number = int(rng.integers(1, 6))
    image, draw = _canvas(SMALL)
    cells = rng.permutation(16)[:number]  # of a 4 x 4 lattice of 8 pixels
    for cell in cells:
        x, y = 8 * (cell % 4) + rng.integers(1, 4), 8 * (cell // 4) + rng.integers(1, 4)
        draw.ellipse((x, y, x + 4, y + 4), fill=INK)
    return _sample(image, "How many points are there?", number, f"{number}")


def rectangle_area(rng: np.random.Generator) -> Sample:
    image, width, height = _rectangle(rng)
    return _sample(image, "What is the area?", width * height, f"{width}*{height}")


def rectangle_perimeter(rng: np.random.Generator) -> Sample:
    image, width, height = _rectangle(rng)
    return _sample(image, "What is the perimeter?", 2 * (width + height), f"2*({width}+{height})")


def hypotenuse(rng: np.random.Generator) -> Sample:
    """A right triangle with whole sides, its legs along a grid of 4 pixels, in one of 8 positions."""
    a, b, c = TRIPLES[rng.integers(len(TRIPLES))]
    if rng.random() < 0.5:
        a, b = b, a
    image, draw = _canvas(LARGE)
    _grid(draw, LARGE, 4)
    left, top = int(rng.integers(0, 13 - a)), int(rng.integers(0, 13 - b))
    corners = [(min(4 * (left + x * a), LARGE - 1), min(4 * (top + y * b), LARGE - 1)) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))]
    del corners[rng.integers(4)]
    draw.polygon(corners, fill=_fill(rng), outline=INK, width=2)
    return _sample(image, "How long is the hypotenuse?", c, f"{a},{b}")


def _rectangle(rng: np.random.Generator) -> tuple[Image.Image, int, int]:
    """A rectangle of 1 to 4 by 1 to 4 cells somewhere on a grid of 8 pixels; its width and height in cells."""
    width, height = (int(size) for size in rng.integers(1, 5, size=2))
    left, top = int(rng.integers(0, 5 - width)), int(rng.integers(0, 5 - height))
    image, draw = _canvas(SMALL)
    draw.rectangle((8 * left, 8 * top, 8 * (left + width) - 1, 8 * (top + height) - 1), fill=_fill(rng), outline=INK, width=2)
    _grid(draw, SMALL, 8)
    return image, width, height


def _canvas(side: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (side, side), "white")
    return image, ImageDraw.Draw(image)


def _grid(draw: ImageDraw.ImageDraw, side: int, cell: int) -> None:
    for at in range(0, side, cell):
        draw.line((at, 0, at, side), fill=GRID)
        draw.line((0, at, side, at), fill=GRID)


def _fill(rng: np.random.Generator) -> tuple[int, ...]:
    """A light colour, far from ink, grid and paper."""
    return tuple(int(value) for value in rng.permutation(np.array([rng.integers(80, 110), rng.integers(150, 190), 255])))


def _sample(image: Image.Image, question: str, answer: int, thought: str) -> Sample:
    return Sample("demo/geometry", encode_png(image), question, str(answer), thought)
