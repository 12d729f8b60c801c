"""Layouts that a model cannot have are refused from its config.json alone, and the fix named is legal."""

import re

import pytest

from tandem.config.layout import check_layout
from tandem.config.schema import ParallelConfig
from tandem.errors import UserError

# The published 35B-A3B and 122B-A10B shapes.
MOE_35B = {
    "vocab_size": 248320, "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "num_experts": 256, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
}  # fmt: skip
MOE_122B = MOE_35B | {
    "num_hidden_layers": 48, "num_attention_heads": 32, "linear_num_value_heads": 64,
    "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024,
}  # fmt: skip
DENSE = {name: value for name, value in MOE_35B.items() if "expert" not in name and not name.startswith("moe")} | {
    "intermediate_size": 9216
}


def test_the_guides_layouts_are_legal():
    check_layout(MOE_35B, ParallelConfig(tp=2, pp=2, ep=8))
    check_layout(MOE_35B, ParallelConfig(tp=2, ep=8))
    check_layout(MOE_122B, ParallelConfig(tp=2, pp=4, ep=16))
    check_layout(MOE_122B, ParallelConfig(tp=2, pp=2, ep=8))
    check_layout(DENSE, ParallelConfig(tp=2, pp=4, cp=4, sp=False))


ILLEGAL = {
    "more tensor ranks than key-value heads": (MOE_35B, {"tp": 4}, "key-value heads", {"tp": 2}),
    "heads": (MOE_35B | {"num_key_value_heads": 3, "num_attention_heads": 6}, {"tp": 2}, "num_key_value_heads = 3", {"tp": 1}),
    "layers": (MOE_35B, {"pp": 3}, "num_hidden_layers = 40", {"pp": 2}),
    "layers of the larger model": (MOE_122B, {"tp": 2, "pp": 5, "ep": 16}, "num_hidden_layers = 48", {"pp": 4}),
    "interleaved layers": (MOE_35B, {"pp": 4, "vpp": 3}, "num_hidden_layers = 40", {"vpp": 0}),
    "interleaved stages": (MOE_35B, {"pp": 4, "vpp": 4}, "parallel.pp * parallel.vpp = 16", {"vpp": 0}),
    "experts": (MOE_35B, {"ep": 12}, "num_experts = 256", {"ep": 8}),
    "experts between two powers of two": (MOE_122B, {"tp": 2, "ep": 24}, "num_experts = 256", {"ep": 16}),
    "expert width": (MOE_35B, {"etp": 3}, "moe_intermediate_size = 512", {"etp": 2}),
    "experts of a dense model": (DENSE, {"ep": 2}, "dense model", {"ep": 1}),
    "delta heads under context parallelism": (MOE_35B, {"tp": 2, "cp": 16}, "linear_num_key_heads = 16", {"cp": 8}),
    "delta heads cut in three": (MOE_122B, {"tp": 2, "cp": 3}, "linear_num_key_heads = 16", {"cp": 2}),
    "delta value heads under context parallelism": (
        MOE_35B | {"linear_num_value_heads": 24},
        {"tp": 2, "cp": 8},
        "linear_num_value_heads = 24",
        {"cp": 4},
    ),
    "no sequence parallelism with experts": (MOE_35B, {"tp": 2, "sp": False}, "with experts", {"sp": True}),
}


@pytest.mark.parametrize("case", ILLEGAL)
def test_a_layout_the_model_cannot_have_is_refused_with_the_nearest_legal_one(case):
    text, sizes, told, legal = ILLEGAL[case]
    with pytest.raises(UserError) as raised:
        check_layout(text, ParallelConfig(**sizes))
    assert told in str(raised.value)
    for key, value in legal.items():
        assert f"parallel.{key}={value}" in str(raised.value) or key == "sp"
    check_layout(text, ParallelConfig(**sizes | legal))


@pytest.mark.parametrize(("name", "value"), [("num_heads", 9), ("intermediate_size", 4303), ("hidden_size", 1151)])
def test_a_vision_tower_that_does_not_divide_is_refused_only_when_it_is_to_be_cut(name, value):
    vision = {"num_heads": 16, "intermediate_size": 4304, "hidden_size": 1152}
    check_layout(MOE_35B, ParallelConfig(tp=2, vision_tp=True), vision)
    check_layout(MOE_35B, ParallelConfig(tp=2), vision | {name: value})
    with pytest.raises(UserError, match=rf"vision_config\.{name} = {value}(?s:.*)parallel\.vision_tp=false"):
        check_layout(MOE_35B, ParallelConfig(tp=2, vision_tp=True), vision | {name: value})


def test_every_fix_ends_in_a_legal_layout():
    for sizes in ({"tp": 8, "pp": 7, "ep": 3}, {"tp": 3, "cp": 5, "etp": 7}, {"pp": 9, "vpp": 5, "ep": 100}):
        sizes = dict(sizes)
        for _ in range(10):
            try:
                check_layout(MOE_122B, ParallelConfig(**sizes))
                break
            except UserError as error:
                key, value = re.search(r"set parallel\.(\w+)=(\d+)", str(error)).groups()
                sizes[key] = int(value)
        else:
            raise AssertionError(f"no end: {sizes}")
