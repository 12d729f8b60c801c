"""Are the values in a model's config.json ones that Tandem computes with? What is merely read past would be trained wrong in silence."""

from typing import Any, NoReturn

from tandem.errors import UserError

LAYER_TYPES = ("linear_attention", "full_attention")
TEXT_SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads"),
)
EXPERT_SIZES = ("num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size")
VISION_SIZES = (
    *("depth", "hidden_size", "intermediate_size", "num_heads", "out_hidden_size"),
    *("num_position_embeddings", "spatial_merge_size"),
)
COMPUTED: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "output_gate_type": ("silu", "swish"),
    "attn_output_gate": (True,),
    "norm_topk_prob": (True,),
}
_OWN_CONFIG = "use the config.json that belongs to these weights"


def check_values(config: dict[str, Any], where: str) -> None:
    """Raises UserError for the first value that cannot be, or that means a model which Tandem does not compute.

    Args:
        config: of a Qwen3.5 vision-language model, as in its config.json, or transformers' with its defaults filled in. A value that is
            left out is transformers' default.
        where: names the config in a message.
    """
    text, vision = config["text_config"], config["vision_config"]
    _check_sizes(text, vision, where)
    _check_divisible(text, "num_attention_heads", "num_key_value_heads", where)
    _check_divisible(text, "linear_num_value_heads", "linear_num_key_heads", where)
    _check_experts(text, where)
    _check_layer_types(text, where)
    _check_computed(text, where)
    for name in ("image_token_id", "video_token_id"):
        if not _is_int(config.get(name)) or config[name] < 0:
            found = f"has {name} = {config[name]!r}" if name in config else f"has no {name}"
            raise UserError(f"{where} {found}", "without it images cannot be told from text", _OWN_CONFIG)


def _check_sizes(text: dict[str, Any], vision: dict[str, Any], where: str) -> None:
    if not _is_int(text.get("num_experts", 0)) or text.get("num_experts", 0) < 0:
        _refuse(where, "text_config.num_experts", text["num_experts"], "it must be a whole number, 0 for a dense model")
    sizes = (*TEXT_SIZES, *(EXPERT_SIZES if text.get("num_experts") else ("intermediate_size",)))
    for part, values, names in (("text_config", text, sizes), ("vision_config", vision, VISION_SIZES)):
        for name in names:
            if name in values and (not _is_int(values[name]) or values[name] < 1):
                _refuse(where, f"{part}.{name}", values[name], "it must be a whole number of at least 1")


def _check_divisible(text: dict[str, Any], name: str, by: str, where: str) -> None:
    if name in text and by in text and text[name] % text[by]:
        _refuse(where, f"text_config.{name}", text[name], f"every one of the {text[by]} {by} serves equally many")


def _check_experts(text: dict[str, Any], where: str) -> None:
    num_experts, chosen = text.get("num_experts", 0), text.get("num_experts_per_tok")
    if not num_experts or chosen is None:
        return
    if chosen > num_experts:
        _refuse(where, "text_config.num_experts_per_tok", chosen, f"there are only {num_experts} experts to choose from")
    if chosen == 1:
        why = "the weight of a single expert is always 1, so its router has no gradient, and Megatron-Core refuses it"
        _refuse(where, "text_config.num_experts_per_tok", chosen, why)


def _check_layer_types(text: dict[str, Any], where: str) -> None:
    types = text.get("layer_types")
    if types is None:
        return
    if not isinstance(types, list) or any(kind not in LAYER_TYPES for kind in types):
        _refuse(where, "text_config.layer_types", types, f"it must be a list of {' and '.join(LAYER_TYPES)}")
    if "num_hidden_layers" in text and len(types) != text["num_hidden_layers"]:
        _refuse(where, "text_config.layer_types", types, f"it must name the type of each of {text['num_hidden_layers']} layers")


def _check_computed(text: dict[str, Any], where: str) -> None:
    """Variants that transformers or vLLM know and the trainer would compute as if they were not asked for."""
    for name, computed in COMPUTED.items():
        if text.get(name, computed[0]) not in computed:
            _refuse(where, f"text_config.{name}", text[name], f"Tandem computes Qwen3.5 as it was published, with {computed[0]!r}, only")
    for name in ("rope_parameters", "rope_scaling"):  # the second is the older name
        rope = text.get(name)
        if rope is None:
            continue
        if not isinstance(rope, dict):
            _refuse(where, f"text_config.{name}", rope, "it must be an object")
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            why = "Tandem computes rope without scaling only, rope_type default; other positions would be trained wrong"
            _refuse(where, f"text_config.{name}.rope_type", kind, why, "use a config.json without rope scaling, or weights made for it")
        sections, pairs = rope.get("mrope_section"), int(text.get("head_dim", 256) * rope.get("partial_rotary_factor", 0.25)) // 2
        if sections is not None and (not isinstance(sections, list) or not all(map(_is_int, sections)) or sum(sections) != pairs):
            _refuse(
                where, f"text_config.{name}.mrope_section", sections, f"the {pairs} turning pairs of a head are shared out among 3 axes"
            )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refuse(where: str, name: str, value: object, why: str, fix: str = _OWN_CONFIG) -> NoReturn:
    raise UserError(f"{where}: {name} = {repr(value)[:80]}", why, fix)
