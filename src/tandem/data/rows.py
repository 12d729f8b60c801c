"""Rows of data files: read, checked, and named in every complaint. Imports no torch.

What a file's columns mean is in `layouts.py`, which files there are in `files.py`.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tandem.config.schema import DataConfig
from tandem.data.bad_rows import BadRow, BadRows
from tandem.data.columns import EXPECTED, check_schema
from tandem.data.files import DataFile, Record, expand
from tandem.data.images import Unreadable, encoded_image
from tandem.data.json_rows import as_record, checked
from tandem.data.layouts import IMAGE_MARK, INSTRUCTION, layout_of
from tandem.data.tokens import reserved_in
from tandem.data.types import Row
from tandem.errors import UserError

__all__ = ["IMAGE_MARK", "INSTRUCTION", "check_files", "read_rows", "reference_response"]

ROLES = ("system", "user", "assistant")
DEFAULTS = DataConfig()


def read_rows(paths: list[str], data: DataConfig = DEFAULTS, bad: BadRows | None = None) -> list[Row]:
    """Every row of `paths`, in order. Files of one call may have different layouts.

    Args:
        data: columns, system prompt and what happens to bad rows.
        bad: counts the rows that are left out.

    Raises:
        UserError: a file is missing, not readable as what its name says, or empty; a column is missing or has a wrong type; no row is left.
        BadRow: a row is malformed, an image is missing or broken, or the number of image marks is not the number of images. It names file,
            row (counted from 0) and reason. With `data.on_bad_row=skip` it is left out instead.
    """
    return list(_iter_rows(paths, data, bad or BadRows(data.on_bad_row == "skip")))


def check_files(paths: list[str], supervised: bool = False, data: DataConfig = DEFAULTS) -> int:
    """Check as `read_rows` does, keep nothing, and return the number of rows: the preflight before anything heavy is started.

    Args:
        supervised: check too that each row has a reference response.
    """
    num_rows = 0
    for row in _iter_rows(paths, data, BadRows(data.on_bad_row == "skip")):
        num_rows += 1
        if supervised:
            reference_response(row)
    return num_rows


def reference_response(row: Row) -> str:
    """What supervised steps learn: `extra_info.response`. Raises UserError when the row has none."""
    response: str = row.extra_info.get("response") or ""
    if not isinstance(response, str) or not response:
        raise UserError(
            f"row {row.id} has no reference response",
            "supervised training learns extra_info.response",
            "add column extra_info with a response to the rows, or set warm_start.max_steps=0",
        )
    if found := reserved_in(response):
        raise UserError(f"row {row.id}: its reference response holds the reserved token {found}", "it is no text to learn", "remove it")
    return response


def _iter_rows(paths: list[str], data: DataConfig, bad: BadRows) -> Iterator[Row]:
    files, num_rows = expand(paths), 0
    for path, name in zip(files, _short_names([str(file) for file in files])):
        for row in _iter_file(path, name, data, bad):
            num_rows += 1
            yield row
    if files and not num_rows:
        why = bad.summary or f"{files[0]} holds none"
        raise UserError("no row is left", why, "mend the rows, or see with data.on_bad_row=error what is wrong")


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


def _iter_file(path: Path, name: str, data: DataConfig, bad: BadRows) -> Iterator[Row]:
    with DataFile(path) as file:
        columns, layout = None, None
        if file.schema is not None:
            layout = layout_of(file.schema.names, data)
            columns = check_schema(file.schema, str(path), layout)
            columns += ["videos"] if "videos" in file.schema.names else []
        for number, record in enumerate(file.records(columns)):
            try:
                if layout is None or columns is None:
                    made = as_record(record, data)
                    yield _row(made, path, name, number, (data.columns.images or "images") in record, data)
                else:
                    assert isinstance(record, dict)
                    has_images = "images" in columns or bool(data.columns.images)
                    made = layout.convert(record)
                    made = checked(made) if layout.name == "data.columns" else made
                    yield _row(made | {"videos": record.get("videos")}, path, name, number, has_images, data)
            except Unreadable as fault:
                bad.meet(BadRow(f"{path}: row {number} (counted from 0) cannot be used", fault.why, fault.fix, fault.kind))


def _row(record: Record, path: Path, name: str, number: int, has_images: bool, data: DataConfig) -> Row:
    """One checked row. A null column counts as absent. Raises Unreadable."""
    messages = _messages(record["prompt"] or [], data.system_prompt)
    answer = _answer((record["reward_model"] or {}).get("ground_truth"))
    if not answer.strip():
        raise Unreadable("answer", "its reference answer is null or empty", "give the row its answer: no response could be graded")
    if record.get("videos"):
        raise Unreadable("video", "it has a video", "remove the row: only text and images can be trained on")
    images = [encoded_image(image, path) for image in record.get("images") or []]
    num_marks = sum(message["content"].count(IMAGE_MARK) for message in messages)
    if num_marks and not has_images:
        why = f"the prompt has {IMAGE_MARK} but column 'images' is missing"
        raise Unreadable("marks", why, f"add the column images: {EXPECTED['images']}")
    if images and num_marks != len(images):
        why = f"{num_marks} {IMAGE_MARK} marks for {len(images)} images"
        raise Unreadable("marks", why, f"write one {IMAGE_MARK} where each image belongs")
    return Row(
        id=f"{name}:{number}",
        data_source=record["data_source"] or data.source,
        messages=messages,
        images=images,
        ground_truth=answer,
        extra_info=record.get("extra_info") or {},
    )


def _messages(messages: list[dict[str, Any] | None], system_prompt: str) -> list[dict[str, str]]:
    """Checked; `system_prompt` stands before them when they have none of their own."""
    fix = f"give every message content and a role of {ROLES}"
    kept: list[dict[str, str]] = []
    for message in messages:
        if message is None or message["role"] not in ROLES or message["content"] is None:
            raise Unreadable("prompt", "the prompt is empty, or a message lacks its role or content", fix)
        kept.append({"role": message["role"], "content": message["content"]})
    if not kept:
        raise Unreadable("prompt", "the prompt is empty, or a message lacks its role or content", fix)
    if kept[-1]["role"] != "user":
        raise Unreadable("prompt", f"the prompt ends with a message of {kept[-1]['role']}", "end it with the user's question")
    if not kept[-1]["content"].strip():
        raise Unreadable("prompt", "the user's last message has no text", "write the question")
    if system_prompt and kept[0]["role"] != "system":
        kept.insert(0, {"role": "system", "content": system_prompt})
    return kept


def _answer(value: str | int | float | None) -> str:
    """The reference answer as text, "" when there is none. A number is written in full: 7.0 as 7, 1e-7 as 0.0000001."""
    if isinstance(value, float):
        return np.format_float_positional(value, trim="-") if np.isfinite(value) else ""
    return "" if value is None else str(value)
