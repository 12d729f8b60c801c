"""The sizes of a Qwen3.5 model, from its config.json, or for the published models, planned before a download, from a table."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.config.modelfolder import MODEL_TYPES
from tandem.config.schema import ModelConfig
from tandem.config.weightfiles import read_json
from tandem.errors import UserError

_MOE: dict[str, Any] = {
    "vocab_size": 248_320, "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4, "linear_num_key_heads": 16,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "num_experts": 256, "num_experts_per_tok": 8,
}  # fmt: skip
_35B = _MOE | {
    "num_hidden_layers": 40, "hidden_size": 2048, "num_attention_heads": 16, "linear_num_value_heads": 32,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
}  # fmt: skip
_122B = _MOE | {
    "num_hidden_layers": 48, "hidden_size": 3072, "num_attention_heads": 32, "linear_num_value_heads": 64,
    "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024,
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3.5-35B-A3B": {"text_config": _35B, "vision_config": {"out_hidden_size": 2048}},
    "Qwen/Qwen3.5-122B-A10B": {"text_config": _122B, "vision_config": {"out_hidden_size": 3072}},
}
# Models that a recipe makes for itself, by its `prepare`.
PREPARED: dict[str, dict[str, Any]] = {
    "demo": {
        "text_config": {
            "vocab_size": 384, "hidden_size": 96, "num_hidden_layers": 2, "full_attention_interval": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
            "linear_value_head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64, "rope_parameters": {"partial_rotary_factor": 0.5},
        },
        "vision_config": {
            "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "patch_size": 8, "num_position_embeddings": 64,
            "out_hidden_size": 96,
        },
    }
}  # fmt: skip
# What transformers fills in where a config.json is silent.
_TEXT_DEFAULTS = {"full_attention_interval": 4, "linear_conv_kernel_dim": 4, "num_experts": 0, "num_experts_per_tok": 0}
_VISION_DEFAULTS = {
    "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "in_channels": 3, "patch_size": 16,
    "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 2304,
}  # fmt: skip


@dataclass(frozen=True)
class Vision:
    """Names as in `vision_config`."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    in_channels: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    num_position_embeddings: int
    out_hidden_size: int

    @property
    def patch_dim(self) -> int:
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def patches_of_token(self) -> int:
        return self.spatial_merge_size**2


@dataclass(frozen=True)
class Shapes:
    """Names as in `text_config`; of a dense model `num_experts` is 0 and `mlp_size` its width, of others an expert's."""

    hidden_size: int
    vocab_size: int
    layer_types: tuple[str, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    num_experts: int
    num_experts_per_tok: int
    mlp_size: int
    shared_size: int
    rotary_dim: int
    tied: bool
    vision: Vision

    @property
    def num_layers(self) -> int:
        return len(self.layer_types)

    @property
    def key_dim(self) -> int:
        """Of Gated DeltaNet's keys over all heads."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim


def is_known(model: ModelConfig, prepare: str = "") -> bool:
    """Whether `model_config` has an answer now: a hub model outside the table has one only when it has been fetched."""
    folder = Path(model.path).expanduser()
    return (folder / "config.json").is_file() if model.path and folder.is_dir() else model.path in PUBLISHED or prepare in PREPARED


def model_config(model: ModelConfig, prepare: str = "") -> dict[str, Any]:
    """`config.json` of the model's folder, of a published model by its hub name, or of the one that the recipe makes for itself.

    Raises:
        UserError: neither; a hub name that is not in the table needs its config.json first.
    """
    path = model.path
    folder = Path(path).expanduser()
    if not path and prepare in PREPARED:
        return PREPARED[prepare]
    if not folder.is_dir() and path in PUBLISHED:
        return PUBLISHED[path]
    if not (folder / "config.json").is_file():
        names = ", ".join(PUBLISHED)
        raise UserError(
            f"the sizes of the model {path or '(model.path is empty)'} are not known",
            f"it is not a folder with a config.json, nor one of {names}",
            "download the model's config.json and set model.path to its folder",
        )
    config = read_json(folder / "config.json")
    if config.get("model_type") not in MODEL_TYPES or not isinstance(config.get("text_config"), dict):
        raise UserError(
            f"{folder / 'config.json'} is not of a Qwen3.5 vision-language model", f"model_type is {config.get('model_type')!r}",
            f"use a model of type {' or '.join(MODEL_TYPES)}",
        )  # fmt: skip
    return config


def shapes_of(config: dict[str, Any]) -> Shapes:
    """Args: config: a whole config.json. Raises UserError when a size is missing."""
    text = _TEXT_DEFAULTS | config["text_config"]
    vision = _VISION_DEFAULTS | {name: value for name, value in (config.get("vision_config") or {}).items() if value is not None}
    every = text["full_attention_interval"]
    try:
        types = text.get("layer_types") or [
            "linear_attention" if (layer + 1) % every else "full_attention" for layer in range(text["num_hidden_layers"])
        ]
        same = ("hidden_size", "vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim", "linear_num_key_heads")
        more = ("linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim", "num_experts_per_tok")
        return Shapes(
            **{name: text[name] for name in same + more},
            layer_types=tuple(types),
            num_experts=text["num_experts"],
            mlp_size=text["moe_intermediate_size" if text["num_experts"] else "intermediate_size"],
            shared_size=text["shared_expert_intermediate_size"] if text["num_experts"] else 0,
            rotary_dim=int(text["head_dim"] * (text.get("rope_parameters") or {}).get("partial_rotary_factor", 0.25)),
            tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
            vision=Vision(**{name: vision[name] for name in Vision.__annotations__}),
        )
    except KeyError as error:
        raise UserError(
            f"the model's config.json has no {error.args[0]}", "its sizes decide what fits", "download the model again"
        ) from error
