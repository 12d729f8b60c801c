"""Rows of parquet files in Geo3K's layout: read, checked, and named in every complaint. Imports no torch.

Columns: data_source, prompt (list of role and content), images (list of bytes or path), reward_model (ground_truth), extra_info; or, as
Geometry3K is published, problem, answer and images.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tandem.data.columns import EXPECTED, check_schema, is_published
from tandem.data.images import verify_image
from tandem.data.tokens import reserved_in
from tandem.data.types import Row
from tandem.errors import UserError

IMAGE_MARK = "<image>"
ROLES = ("system", "user", "assistant")
# what the field's processing script writes behind a published problem
INSTRUCTION = (
    "You FIRST think about the reasoning process as an internal monologue and then provide the final answer. "
    r"The reasoning process MUST BE enclosed within <think> </think> tags. The final answer MUST BE put in \boxed{}."
)


def read_rows(paths: list[str]) -> list[Row]:
    """Every row of `paths`, in order.

    Raises:
        UserError: a file is missing, not parquet or empty, a column is missing or has a wrong type, a row is malformed, an image is
            missing or broken, or the number of image marks is not the number of images. It names file, row (counted from 0) and reason.
    """
    return list(_iter_rows(paths))


def check_files(paths: list[str], supervised: bool = False) -> int:
    """Check as `read_rows` does, keep nothing, and return the number of rows: the preflight before anything heavy is started.

    Args:
        supervised: check too that each row has a reference response.
    """
    num_rows = 0
    for row in _iter_rows(paths):
        num_rows += 1
        if supervised:
            reference_response(row)
    return num_rows


def reference_response(row: Row) -> str:
    """What supervised steps learn: `extra_info.response`. Raises UserError when the row has none."""
    response: str = row.extra_info.get("response") or ""
    if not response:
        raise UserError(
            f"row {row.id} has no reference response",
            "supervised training learns extra_info.response",
            "add column extra_info with a response to the rows, or set warm_start.max_steps=0",
        )
    if found := reserved_in(response):
        raise UserError(f"row {row.id}: its reference response holds the reserved token {found}", "it is no text to learn", "remove it")
    return response


def _iter_rows(paths: list[str]) -> Iterator[Row]:
    for path, name in zip(paths, _short_names(paths)):
        yield from _iter_file(Path(path), name)


def _short_names(paths: list[str]) -> list[str]:
    """The file name of each path, with as many parent folders before it as tell two of them apart."""
    resolved = [Path(path).resolve() for path in paths]
    if twice := [str(path) for path, count in Counter(resolved).items() if count > 1]:
        raise UserError(f"{twice[0]} is listed twice", "its rows would count double and share their ids", "list each file once")
    names = []
    for path in resolved:
        depth = 1
        while sum(other.parts[-depth:] == path.parts[-depth:] for other in resolved) > 1:
            depth += 1
        names.append("/".join(path.parts[-depth:]))
    return names


def _iter_file(path: Path, name: str) -> Iterator[Row]:
    with _open(path) as file:
        columns = check_schema(file.schema_arrow, str(path))
        columns += ["videos"] if "videos" in file.schema_arrow.names else []
        published = is_published(file.schema_arrow)
        for number, record in enumerate(_records(file, columns, path)):
            yield _row(_processed(record) if published else record, path, name, number, "images" in columns)


def _processed(record: dict[str, Any]) -> dict[str, Any]:
    """A published record as the field's processing script writes it."""
    problem, answer = record["problem"], record["answer"]
    return {
        "data_source": "hiyouga/geometry3k",
        "prompt": None if problem is None else [{"role": "user", "content": f"{problem} {INSTRUCTION}"}],
        "images": record.get("images"),
        "reward_model": {"ground_truth": answer},
        "extra_info": {"question": problem, "answer": answer},
    }


def _open(path: Path) -> pq.ParquetFile:
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise UserError(f"data file {path} {what}", "rows are read from parquet files", "check data.train_files and data.val_files")
    try:
        file = pq.ParquetFile(path)
    except PermissionError as error:
        raise UserError(f"data file {path} cannot be opened", str(error), "make the file readable") from error
    except (pa.ArrowException, OSError) as error:
        why = "it has no bytes" if path.stat().st_size == 0 else str(error).splitlines()[0]
        raise UserError(f"data file {path} is not a parquet file", why, "write it as parquet, or name another file") from error
    if file.metadata.num_rows == 0:
        file.close()
        raise UserError(f"data file {path} is empty", "it has 0 rows", "write the file again, or name another one")
    return file


def _records(file: pq.ParquetFile, columns: list[str], path: Path) -> Iterator[dict[str, Any]]:
    """Some rows at a time, so that a large file is never held twice."""
    try:
        for batch in file.iter_batches(batch_size=256, columns=columns):
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"data file {path} is damaged", str(error).splitlines()[0], "write or copy the file again") from error


def _row(record: dict[str, Any], path: Path, name: str, number: int, has_images: bool) -> Row:
    """One checked row. A null column counts as absent."""

    def fail(reason: str, fix: str) -> UserError:
        return UserError(f"{path}: row {number} (counted from 0) cannot be used", reason, fix)

    messages = record["prompt"] or []
    if not messages or any(m is None or m["role"] not in ROLES or m["content"] is None for m in messages):
        raise fail("the prompt is empty, or a message lacks its role or content", f"give every message content and a role of {ROLES}")
    if messages[-1]["role"] != "user":
        raise fail(f"the prompt ends with a message of {messages[-1]['role']}", "end it with the user's question")
    answer = _answer((record["reward_model"] or {}).get("ground_truth"))
    if not answer.strip():
        raise fail("its reference answer is null or empty", "give the row its answer: no response could be graded")

    if record.get("videos"):
        raise fail("it has a video", "remove the row: only text and images can be trained on")
    images = [_image_bytes(image, path, fail) for image in record.get("images") or []]
    num_marks = sum(message["content"].count(IMAGE_MARK) for message in messages)
    if num_marks and not has_images:
        raise fail(f"the prompt has {IMAGE_MARK} but column 'images' is missing", f"add the column images: {EXPECTED['images']}")
    if images and num_marks != len(images):
        raise fail(f"{num_marks} {IMAGE_MARK} marks for {len(images)} images", f"write one {IMAGE_MARK} where each image belongs")
    return Row(
        id=f"{name}:{number}",
        data_source=record["data_source"] or "",
        messages=[{"role": m["role"], "content": m["content"]} for m in messages],
        images=images,
        ground_truth=answer,
        extra_info=record.get("extra_info") or {},
    )


def _answer(value: str | int | float | None) -> str:
    """The reference answer as text, "" when there is none. A number is written in full: 7.0 as 7, 1e-7 as 0.0000001."""
    if isinstance(value, float):
        return np.format_float_positional(value, trim="-") if np.isfinite(value) else ""
    return "" if value is None else str(value)


def _image_bytes(image: dict[str, Any] | None, path: Path, fail: Callable[[str, str], UserError]) -> bytes:
    """The encoded image of one entry of column images: its bytes, else the file at its path, which is relative to the parquet file."""
    image = image or {}
    data, where = image.get("bytes"), "an image"
    if data is None and image.get("path"):
        file = path.parent / image["path"]
        where = f"image {file}"
        try:
            data = file.read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a null byte in the path
            why = f"{where} cannot be read: {getattr(error, 'strerror', None) or error}"
            raise fail(why, "an image path is relative to its parquet file; copy the images beside it") from error
    if data is None:
        raise fail("an image has neither bytes nor path", "give it one of the two")
    if broken := verify_image(data):
        raise fail(f"{where} is broken: {broken}", "replace the image or remove the row")
    return data
