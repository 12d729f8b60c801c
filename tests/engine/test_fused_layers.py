"""Fused layers: which are chosen, that the model calls them, and that names, weights and numbers stay those of the portable ones.

No package with fused layers runs on a CPU: modules of plain PyTorch take their places by Megatron's names, as MindSpeed does it.
"""

from dataclasses import replace

import numpy as np
import pytest

from tandem.config.schema import ParallelConfig
from tandem.devices import DEVICES, parts
from tandem.engine.fork_ranks import fork_ranks
from tandem.errors import UserError
from tandem.qwen3_5.checkpoint import HuggingFaceFolder
from tests.engine.layouts import LAYOUTS, Case, measure


@pytest.mark.parallel
def test_fused_layers_give_the_numbers_of_the_portable_ones(tiny_model, sequences):
    layouts = [LAYOUTS[name] for name in ("single", "tp2_etp2", "tp2_cp2_ep2")]
    portable = [Case(layout, tiny_model, sequences) for layout in layouts]
    fused = [replace(case, function="tests.engine.fused:score_and_train") for case in portable]
    measured = measure(portable + fused)
    for right, ours in zip(measured[: len(layouts)], measured[len(layouts) :]):
        assert max(np.abs(a - b).max() for a, b in zip(ours.logprobs, right.logprobs)) <= 1e-5
        assert ours.losses == pytest.approx(right.losses, rel=1e-6)
        assert ours.grad_norms == pytest.approx(right.grad_norms, rel=1e-5)


def test_every_fused_module_is_called_as_often_as_there_are_places_for_it(tiny_model, sequences):
    """Three linear-attention layers and one of full attention, all with experts and a shared expert."""
    [calls] = fork_ranks("tests.engine.fused:count_calls", ParallelConfig(), 1, model_path=str(tiny_model), sequences=sequences)
    assert calls == {
        "TENorm": 4 * 2 + 2 + 1,  # two a layer, queries and keys, the last one
        "TEColumnParallelLinear": 4 + 4,  # attention of either kind, shared expert
        "TERowParallelLinear": 4 + 4,
        "TEDotProductAttention": 1,
        "GroupedLinear": 4,
        "RowGroupedLinear": 4,
        "fla": 3,
    }


def test_weights_of_grouped_experts_come_back_bit_for_bit(tiny_model):
    shares = fork_ranks("tests.engine.fused:export_tensors", ParallelConfig(tp=2, etp=2, pp=2), 4, model_path=str(tiny_model))
    folder, seen = HuggingFaceFolder(tiny_model), {}
    for share in shares:
        assert not set(seen) & set(share), "a tensor is published twice"
        seen |= share
    assert set(seen) == folder.names()
    assert all(np.array_equal(value, folder.get(name).numpy()) for name, value in seen.items())


def installed(monkeypatch, *packages: str) -> None:
    monkeypatch.setattr(parts.importlib.util, "find_spec", lambda package: package if package in packages else None)


@pytest.mark.parametrize(
    ("device", "packages", "fused_layers", "fla"),
    [
        ("npu", ("mindspeed", "fla"), True, True),
        ("npu", ("mindspeed", "transformer_engine"), True, False),
        ("npu", ("transformer_engine",), False, False),
        ("gpu", ("transformer_engine", "fla"), True, True),
        ("gpu", ("fla", "mindspeed"), False, True),
        ("cpu", ("transformer_engine", "mindspeed", "fla"), False, False),
    ],
)
def test_a_device_uses_what_is_installed_for_it_and_says_why(device, packages, fused_layers, fla, monkeypatch):
    installed(monkeypatch, *packages)
    chosen = parts.choose_parts(DEVICES[device])
    assert (chosen.fused_layers, chosen.fla) == (fused_layers, fla)
    for reason, fused in zip(chosen.reasons, (fused_layers, fla)):
        assert ("which is installed" in reason) == fused and ("portable" in reason) != fused


def test_portable_layers_can_be_asked_for_and_missing_fused_ones_are_an_error(monkeypatch):
    installed(monkeypatch, "transformer_engine")
    assert not parts.choose_parts(DEVICES["gpu"], "portable").fused_layers
    with pytest.raises(UserError, match=r"(?s)gated delta rule.*fla is not installed.*install fla"):
        parts.choose_parts(DEVICES["gpu"], "fused")
    with pytest.raises(UserError, match="there is no other for cpu"):
        parts.choose_parts(DEVICES["cpu"], "fused")
