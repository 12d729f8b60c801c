"""Is a folder a Qwen3.5 vision-language model that can be loaded? Looks at names, sizes and headers, reads no weights."""

import re
from pathlib import Path
from typing import Any

from tandem.config.layout import check_layout
from tandem.config.modelvalues import check_values
from tandem.config.schema import ParallelConfig
from tandem.config.weightfiles import read_headers, read_json
from tandem.errors import UserError

MODEL_TYPES = ("qwen3_5_moe", "qwen3_5")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
_ASK = "set model.path to a Hugging Face folder or hub name of a Qwen3.5 vision-language model"


def check_model(path: str, parallel: ParallelConfig, router_replay: bool = False) -> None:
    """Raises UserError unless `path` is a whole Qwen3.5 folder that this layout can cut, with experts if their choice is replayed.

    A name like `org/name` that is no folder is left to the hub client.
    """
    folder = Path(path).expanduser()
    if not folder.exists():
        if _HUB_NAME.match(path):
            return
        raise UserError(f"no model at {path}", "model.path does not exist and does not look like a hub name (org/name)", _ASK)
    if not folder.is_dir():
        raise UserError(f"model.path = {path} is a file", "a model is a folder with config.json, weights and tokenizer", _ASK)
    check_config(folder, parallel, router_replay)
    _check_processor(folder)
    read_headers(folder)


def check_config(folder: Path, parallel: ParallelConfig, router_replay: bool = False) -> None:
    """Raises UserError unless config.json of `folder` is Qwen3.5's and this layout can cut it, with experts if their choice is replayed."""
    config = _config(folder)
    check_values(config, str(folder / "config.json"))
    check_layout(config["text_config"], parallel, config["vision_config"])
    if router_replay and not config["text_config"].get("num_experts"):
        raise UserError(
            "rollout.router_replay with a model without experts", f"{folder} has none, so there is no choice to replay", "set it to false"
        )


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"no config.json in {folder}", "without it the folder is not a Hugging Face model", _ASK)
    config = read_json(path)
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
