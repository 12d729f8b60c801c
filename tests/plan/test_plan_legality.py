"""Every layout that cannot be is refused before anything is loaded, by its own rule, with the nearest legal value."""

import pytest

from tandem.config.load import load
from tandem.config.schema import Config
from tandem.errors import UserError
from tandem.plan.legality import broken_rules
from tandem.plan.shapes import PUBLISHED

MODEL = PUBLISHED["Qwen/Qwen3.5-35B-A3B"]
LARGE = PUBLISHED["Qwen/Qwen3.5-122B-A10B"]
DENSE = {"text_config": MODEL["text_config"] | {"num_experts": 0, "intermediate_size": 9216}, "vision_config": {}}
ODD_HEADS = {"text_config": MODEL["text_config"] | {"num_attention_heads": 6, "num_key_value_heads": 3, "linear_num_key_heads": 15}}
ODD_VISION = MODEL | {"vision_config": {"num_heads": 15}}

# model, ranks, layout, other sections -> what the rule says, and its fix
ILLEGAL = {
    "world not divisible by tp * pp * cp": (MODEL, 12, {"tp": 2, "pp": 4}, {}, "whole copies of the model", "use 8 ranks"),
    "world not divisible by ep * etp * pp": (MODEL, 16, {"pp": 4, "ep": 8}, {}, "whole copies of the experts", "ep * etp * pp of 16"),
    "sequence parallelism without tensor parallelism": (MODEL, 8, {"sp": True}, {}, "parallel.sp = true", "leave parallel.sp unset"),
    "heads not divisible by tp": (ODD_HEADS, 8, {"tp": 2}, {}, "num_key_value_heads = 3", "parallel.tp=1"),
    "more tensor ranks than key-value heads": (MODEL, 8, {"tp": 4}, {}, "more than the model's 2 key-value heads", "parallel.tp=2"),
    "expert parallelism without experts": (DENSE, 8, {"ep": 2}, {}, "for a dense model", "parallel.ep=1"),
    "expert parallelism that does not divide the experts": (MODEL, 24, {"ep": 24}, {}, "num_experts = 256", "parallel.ep=16"),
    "interleaving without a pipeline": (MODEL, 8, {"vpp": 2}, {}, "without a pipeline", "parallel.vpp=0"),
    "40 layers not divisible by pp": (MODEL, 6, {"pp": 3}, {}, "num_hidden_layers = 40", "parallel.pp=2"),
    "48 layers not divisible by pp": (LARGE, 5, {"pp": 5}, {}, "num_hidden_layers = 48", "parallel.pp=4"),
    "delta heads not divisible by tp * cp": (MODEL, 64, {"tp": 2, "cp": 16}, {}, "linear_num_key_heads = 16", "parallel.cp=8"),
    "vision heads not divisible by tp": (ODD_VISION, 8, {"tp": 2, "vision_tp": True}, {}, "num_heads = 15", "parallel.vision_tp=false"),
    "a batch that is no multiple of the model's copies": (
        MODEL, 16, {"tp": 2}, {"data": {"train_batch_size": 9}, "rollout": {"n": 3}}, "cannot be dealt out evenly", "train_batch_size=8",
    ),
    "a generator that cuts heads unevenly": (MODEL, 8, {}, {"rollout": {"tp": 3}}, "num_attention_heads = 16", "rollout.tp=2"),
    "a generator that cuts key-value heads unevenly": (ODD_HEADS, 8, {}, {"rollout": {"tp": 2}}, "3 key-value heads", "rollout.tp=3"),
}  # fmt: skip


def config(ranks, layout, sections=None):
    return Config.model_validate({"trainer": {"devices_per_node": ranks}, "parallel": layout} | (sections or {}))


@pytest.mark.parametrize("name", ILLEGAL)
def test_a_layout_that_cannot_be_is_refused_by_its_rule(name):
    model, ranks, layout, sections, told, fix = ILLEGAL[name]
    found = broken_rules(config(ranks, layout, sections), model)
    assert any(told in error.what and fix in error.fix for error in found), [str(error) for error in found]


def test_a_batch_is_held_against_the_copies_of_the_model_and_not_against_the_devices():
    """8 prompts * 2 samples on 32 devices: 16 copies of a tp 2 model take one sample each."""
    sections = {"data": {"train_batch_size": 8}, "rollout": {"n": 2}}
    assert not broken_rules(config(32, {"tp": 2}, sections), MODEL)
    assert broken_rules(config(32, {}, sections), MODEL)


@pytest.mark.parametrize("override", ["model.dtype=float16", "model.fp16=true"])
def test_there_is_one_dtype_so_two_cannot_both_be_on(override):
    with pytest.raises(UserError, match=r"bfloat16|unknown key"):
        load("demo", [override], env={})


def test_a_misspelt_key_is_refused_with_the_one_that_was_meant():
    with pytest.raises(UserError, match=r"parallel\.tp"):
        load("demo", ["paralel.tp=2"], env={})


def test_all_broken_rules_are_told_at_once_and_the_guides_layouts_break_none():
    layout = {"tp": 4, "pp": 3, "vpp": 7, "cp": 3, "ep": 12, "etp": 3}
    found = [error.what for error in broken_rules(config(7, layout, {"rollout": {"n": 1, "tp": 3}}), MODEL)]
    keys = ("whole copies of the model", "whole copies of the experts", "rollout.n = 1", "parallel.tp = 4", "parallel.tp * parallel.cp")
    keys += ("parallel.pp = 3", "parallel.pp * parallel.vpp", "parallel.ep = 12", "parallel.etp = 3", "rollout.tp = 3")
    for told in keys:
        assert any(told in what for what in found), told
    assert not broken_rules(config(16, {"tp": 2, "pp": 2, "ep": 8}), MODEL)
    assert not broken_rules(config(64, {"tp": 2, "pp": 4, "ep": 16}, {"rollout": {"tp": 16}}), LARGE)
