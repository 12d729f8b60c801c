"""What `tandem inspect data` found, as text for a terminal or as a page with pictures. Takes plain values: rows as dictionaries.

A row: id, source, prompt, rendered, tokens (None: not known), answer, pictures of {type, width, height, bytes, data}.
"""

from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from tandem.report.terminal import plain

BARS = 10  # of the histogram of lengths
WIDEST = 40  # characters of a bar
SHOWN = ("PNG", "JPEG", "GIF", "WEBP", "BMP")  # by browsers
PAGE_BYTES = 24 << 20  # of pictures on a page


def data_text(rows: Sequence[dict[str, Any]], summary: Sequence[str], bad: Sequence[str], shown: int) -> RenderableType:
    """The summary, complaints, a histogram of lengths and the first `shown` rows."""
    lengths = [row["tokens"] for row in rows if row["tokens"] is not None]
    parts: list[Text] = [plain(line) for line in summary]
    parts += [Text.assemble(("bad row: ", "red"), plain(text)) for text in bad[:5]]
    parts += [plain(f"... and {len(bad) - 5} further bad rows")] if len(bad) > 5 else []
    parts += [Text(line) for line in histogram(lengths)]
    return Group(*parts, Text(), *(part for row in rows[:shown] for part in _row(row)))


def _row(row: dict[str, Any]) -> list[Text]:
    tokens = "" if row["tokens"] is None else f", {row['tokens']} tokens"
    head = plain(f"{row['id']}, from {row['source']}{tokens}")
    head.stylize("bold")
    pictures = [plain(f"picture: {p['width']} x {p['height']} {p['type']}, {p['bytes']:,} bytes") for p in row["pictures"]]
    return [head, *pictures, plain(row["prompt"]), Text.assemble("answer: ", plain(row["answer"])), Text()]


def histogram(lengths: Sequence[int]) -> list[str]:
    """Lines `from - to: count` with bars; none without lengths."""
    if not lengths:
        return []
    least, width = min(lengths), max(1, -(-(max(lengths) - min(lengths) + 1) // BARS))
    counts = Counter((length - least) // width for length in lengths)
    most = max(counts.values())
    lines = ["tokens a prompt:"]
    for number in range(max(counts) + 1):
        start, count = least + number * width, counts[number]
        bar = "#" * -(-WIDEST * count // most)
        lines.append(f"{start:>8} - {start + width - 1:<8} {count:>7} {bar}".rstrip())
    return lines


def page_rows(rows: Sequence[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """The rows as the page has them: pictures as data URLs while they fit, a mark on rows that are longer than `limit` tokens."""
    left, made = PAGE_BYTES, []
    for row in rows:
        pictures = []
        for picture in row["pictures"]:
            left -= len(picture["data"])
            told = {name: picture[name] for name in ("type", "width", "height", "bytes")}
            pictures.append(told | {"url": data_url(picture) if left >= 0 and picture["type"] in SHOWN else None})
        made.append(row | {"pictures": pictures, "overlong": row["tokens"] is not None and row["tokens"] > limit})
    return made


def data_url(picture: dict[str, Any]) -> str:
    return f"data:image/{picture['type'].lower()};base64,{b64encode(picture['data']).decode()}"
