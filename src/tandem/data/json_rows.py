"""A record of JSON lines: checked by itself, as no schema speaks for it, and made like a processed one."""

import base64
import binascii
import json
from typing import Any

from tandem.config.schema import DataConfig
from tandem.data.files import Record
from tandem.data.images import Unreadable
from tandem.data.layouts import layout_of


def as_record(record: Record | str, data: DataConfig) -> Record:
    """The record in the processed form, prompt a list of messages, images as parquet has them. Raises Unreadable."""
    if isinstance(record, str):
        raise Unreadable("json", f"its line is no JSON object: {record[:60]!r}", "write one object a line")
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Unreadable("text", "its text holds one half of a surrogate pair", "write the character whole, or leave it out") from error
    layout = layout_of(record, data)
    missing = [name for name in layout.needed if name not in record and name != "data_source"]
    if missing:
        raise Unreadable("type", f"it has no {missing[0]!r}, only {', '.join(record) or 'nothing'}", "name its columns with data.columns")
    made = layout.convert({name: record.get(name) for name in layout.read})
    made["images"] = _images(made["images"])
    return checked(made) | {"videos": record.get("videos")}


def checked(made: Record) -> Record:
    """The record, its prompt a list of messages; its images are looked at elsewhere. For what no schema has checked, columns that a user
    names included. Raises Unreadable."""
    prompt = made["prompt"]
    made["prompt"] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else _messages(prompt)
    reward = _of_type("reward_model", made["reward_model"], dict)
    if reward and (isinstance(reward.get("ground_truth"), bool | list | dict)):
        raise Unreadable("type", f"its reference answer is {reward['ground_truth']!r}", "write the answer as text or a number")
    _of_type("data_source", made["data_source"], str)
    _of_type("extra_info", made["extra_info"], dict)
    return made


def _of_type(name: str, value: Any, kind: type) -> Any:
    if value is not None and not isinstance(value, kind):
        raise Unreadable("type", f"its {name} is {value!r:.60}", f"{name} must be {'an object' if kind is dict else 'text'}")
    return value


def _messages(prompt: Any) -> list[dict[str, Any]]:
    prompt = [] if prompt is None else prompt
    if not isinstance(prompt, list) or not all(isinstance(m, dict) and isinstance(m.get("content"), str | None) for m in prompt):
        raise Unreadable("type", f"its prompt is {prompt!r:.60}", "write it as text, or as a list of messages with role and content")
    return [{"role": message.get("role"), "content": message.get("content")} for message in prompt]


def _images(images: Any) -> list[dict[str, Any]]:
    """Each a path, or an object with `path`, or with `bytes` in base64."""
    fix = 'write each image as a path, or as {"bytes": BASE64}'
    if not isinstance(images or [], list):
        raise Unreadable("type", f"its images are {images!r:.60}", fix)
    entries = []
    for image in images or []:
        entry = {"path": image} if isinstance(image, str) else image
        if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str | None) for name in ("bytes", "path")):
            raise Unreadable("type", f"an image is {image!r:.60}", fix)
        try:
            entries.append(
                {"bytes": base64.b64decode(entry["bytes"], validate=True) if entry.get("bytes") else None, "path": entry.get("path")}
            )
        except binascii.Error as error:
            raise Unreadable("image", f"an image's bytes are not base64: {error}", fix) from error
    return entries
