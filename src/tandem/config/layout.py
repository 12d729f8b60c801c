"""Which parallel sizes a model can have: its heads, experts, layers and widths against the layout. Reads the model's config.json only."""

import math
from typing import Any

from tandem.config.schema import ParallelConfig
from tandem.errors import UserError


def check_layout(text: dict[str, Any], parallel: ParallelConfig, vision: dict[str, Any] | None = None) -> None:
    """Raises UserError with the nearest legal size for the first layout rule that this model breaks.

    Args:
        text: `text_config` of the model, as in its config.json, or transformers' with its defaults filled in.
        vision: `vision_config`, likewise; looked at when the vision tower is to be cut.
    """
    tp, cp, experts = parallel.tp, parallel.cp, text.get("num_experts") or 0
    groups = text.get("num_key_value_heads") or tp
    if tp > groups:
        raise UserError(
            f"parallel.tp = {tp} is more than the model's {groups} key-value heads",
            "the output gate would have to be sliced across ranks that share a key-value head",
            f"set parallel.tp={_divisor_below(groups, tp)}",
        )
    for name in ("num_key_value_heads", "num_attention_heads", "vocab_size", "shared_expert_intermediate_size", "intermediate_size"):
        _divides(text, name, "parallel.tp", tp)
    delta_heads = {name: text.get(name) or 0 for name in ("linear_num_key_heads", "linear_num_value_heads")}
    for name in delta_heads:
        _divides(text, name, "parallel.tp", tp)
    for name, heads in delta_heads.items():
        if heads % (tp * cp):
            legal = _divisor_below(math.gcd(*delta_heads.values()) // tp, cp)
            _refuse(name, heads, "parallel.tp * parallel.cp", tp * cp, f"parallel.cp={legal}")
    for name in ("num_heads", "intermediate_size", "hidden_size"):
        if parallel.vision_tp and vision and (vision.get(name) or 0) % tp:
            _refuse(f"vision_config.{name}", vision[name], "parallel.tp with parallel.vision_tp = true", tp, "parallel.vision_tp=false")
    _divides(text, "num_hidden_layers", "parallel.pp", parallel.pp)
    stages, layers = parallel.pp * (parallel.vpp or 1), text.get("num_hidden_layers") or 0
    if layers % stages:
        _refuse("num_hidden_layers", layers, "parallel.pp * parallel.vpp", stages, "parallel.vpp=0")
    if not experts:
        if parallel.ep > 1:
            raise UserError(f"parallel.ep = {parallel.ep} for a dense model", "it has no experts to spread", "set parallel.ep=1")
        return
    _divides(text, "num_experts", "parallel.ep", parallel.ep)
    _divides(text, "moe_intermediate_size", "parallel.etp", parallel.etp)
    if tp > 1 and parallel.sp is False:
        raise UserError(
            f"parallel.sp = false with parallel.tp = {tp} for a model with experts",
            "Megatron-Core trains experts under tensor parallelism only with sequence parallelism",
            "leave parallel.sp unset, or set it to true",
        )


def _divides(text: dict[str, Any], name: str, key: str, size: int) -> None:
    value = text.get(name) or 0
    if value % size:
        _refuse(name, value, key, size, f"{key}={_divisor_below(value, size)}")


def _refuse(name: str, value: int, key: str, size: int, fix: str) -> None:
    raise UserError(f"{key} = {size} does not divide the model's {name} = {value}", "every rank holds an equal part", f"set {fix}")


def _divisor_below(number: int, size: int) -> int:
    """The largest divisor of `number` that is at most `size`."""
    return next(d for d in range(min(size, number), 0, -1) if number % d == 0)
