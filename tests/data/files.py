"""Small parquet files and images for the tests of this folder."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tandem.data.demo.write import SCHEMA as DEMO_SCHEMA
from tandem.data.types import Row

EXTRA_INFO = pa.field("extra_info", pa.struct([("index", pa.int64()), ("response", pa.string())]))
SCHEMA = DEMO_SCHEMA.set(DEMO_SCHEMA.get_field_index("extra_info"), EXTRA_INFO)


def picture(width: int = 48, height: int = 32, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Noise."""
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise).convert(mode)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def record(text: str = "<image>What is the area?", images: list[bytes] | None = None, answer: Any = "7") -> dict[str, Any]:
    """One row of a file; one image unless `images` says otherwise."""
    images = [encoded(picture())] if images is None else images
    return {
        "data_source": "test",
        "prompt": [{"role": "user", "content": text}],
        "images": [{"bytes": data, "path": None} for data in images],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"index": 0, "response": "seven"},
    }


def write(path: Path, records: list[dict[str, Any]], schema: pa.Schema | None = SCHEMA) -> str:
    """The path, as a string; `schema=None` lets pyarrow guess it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(records, schema=schema), path)
    return str(path)


def row(text: str, images: list[bytes] | None = None, before: list[dict[str, str]] | None = None) -> Row:
    """A row as `read_rows` gives it; `before` stands in front of the user's message."""
    return Row("test.parquet:0", "test", [*(before or []), {"role": "user", "content": text}], images or [], "7", {})
