"""Is a folder a Qwen3.5 vision-language model that can be loaded? Looks at names, sizes and headers, reads no weights."""

import json
import re
import struct
from pathlib import Path
from typing import Any

from tandem.config.layout import check_layout
from tandem.config.schema import ParallelConfig
from tandem.errors import UserError

MODEL_TYPES = ("qwen3_5_moe", "qwen3_5")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
_ASK = "set model.path to a Hugging Face folder or hub name of a Qwen3.5 vision-language model"


def check_model(path: str, parallel: ParallelConfig) -> None:
    """Raises UserError unless `path` is a whole Qwen3.5 folder that this layout can cut.

    A name like `org/name` that is no folder is left to the hub client.
    """
    folder = Path(path).expanduser()
    if not folder.exists():
        if _HUB_NAME.match(path):
            return
        raise UserError(f"no model at {path}", "model.path does not exist and does not look like a hub name (org/name)", _ASK)
    if not folder.is_dir():
        raise UserError(f"model.path = {path} is a file", "a model is a folder with config.json, weights and tokenizer", _ASK)
    config = _config(folder)
    check_layout(config["text_config"], parallel, config["vision_config"])
    _check_processor(folder)
    for shard in _shards(folder):
        _check_shard(shard)


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"no config.json in {folder}", "without it the folder is not a Hugging Face model", _ASK)
    config = _read_json(path)
    found = config.get("model_type")
    if found not in MODEL_TYPES:
        raise UserError(f"{path}: model_type is {found!r}", f"Tandem trains Qwen3.5: model_type {' or '.join(MODEL_TYPES)}", _ASK)
    for part in ("text_config", "vision_config"):
        if not isinstance(config.get(part), dict):
            raise UserError(f"{path} has no {part}", "a Qwen3.5 vision-language model describes its text and its vision part", _ASK)
    return config


def _check_processor(folder: Path) -> None:
    for purpose, names in {
        "tokenizer": ("tokenizer.json", "vocab.json", "tokenizer_config.json"),
        "image processor": ("processor_config.json", "preprocessor_config.json"),
    }.items():
        if not any((folder / name).is_file() for name in names):
            raise UserError(
                f"no {purpose} in {folder}",
                f"one of {', '.join(names)} is needed",
                "copy it from the model's original folder or download again",
            )


def _shards(folder: Path) -> list[Path]:
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if not index.is_file():
        if single.is_file():
            return [single]
        raise UserError(
            f"no weights in {folder}", "neither model.safetensors nor model.safetensors.index.json is there", "download the model again"
        )
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{index} has no weight_map", "it says which file holds which tensor", "download the model again")
    shards = [folder / name for name in sorted(set(weight_map.values()))]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        names = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise UserError(
            f"{len(missing)} of {len(shards)} weight files are missing in {folder}: {names}",
            f"{index.name} names them",
            "download them again",
        )
    return shards


def _check_shard(path: Path) -> None:
    """A safetensors file is as long as its header says (format: 8 bytes header length, JSON header, data)."""
    size = path.stat().st_size
    broken = UserError(f"{path} is not a whole safetensors file", f"its {size} bytes do not match its header", "download it again")
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if 8 + length > size:
            raise broken
        try:
            header = json.loads(file.read(length))
            end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise broken from error
    if 8 + length + end != size:
        raise broken


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UserError(f"cannot read {path}", f"it is not valid JSON: {error}", "download or write the file again") from error
    if not isinstance(value, dict):
        raise UserError(f"cannot use {path}", "it holds no JSON object", "download or write the file again")
    return value
