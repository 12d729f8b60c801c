"""Hugging Face -> Megatron -> Hugging Face: the same bytes in the same files, whatever the layout and the form of the folder."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tandem.config.schema import ParallelConfig
from tandem.engine.fork_ranks import fork_each
from tests.engine.layouts import LAYOUTS
from tests.examples import rewrite_weights, tensors_outside_the_model, write_tiny_model

pytestmark = pytest.mark.parallel

LAYER = "model.language_model.layers."
EMBEDDING = "model.language_model.embed_tokens.weight"
BF16 = {"model": {"dtype": "bfloat16"}}
FORMS = {  # model, layout, settings
    "single_file": ("tiny", "tp2_pp2_ep2", {}),
    "all_fused_in_a_single_file": ("fused", "tp2_etp2", {}),
    "tied_with_an_output_weight_all_the_same": ("tied", "tp2_pp2", {}),
    "published_dtypes_trained_in_bf16": ("published", "tp2_pp2_ep2", BF16),
    "fp32_trained_in_bf16": ("tiny", "tp2_etp2", BF16),
}
BROKEN = {  # tensors to add (None: to leave out), what the refusal names
    "a layer too many": ({LAYER + "4.input_layernorm.weight": torch.ones(64)}, "1 unknown: " + LAYER + "4.input_layernorm.weight"),
    "an expert too many": (
        {LAYER + "0.mlp.experts.8.down_proj.weight": torch.ones(64, 32)},
        "1 unknown: " + LAYER + "0.mlp.experts.8.down_proj.weight",
    ),
    "a fused expert too many": (
        {LAYER + "1.mlp.experts.down_proj": torch.ones(9, 64, 32)},
        "1 unknown: " + LAYER + "1.mlp.experts.8.down_proj.weight",
    ),
    "a stray projection": ({LAYER + "3.self_attn.o_proj.bias": torch.ones(64)}, "1 unknown: " + LAYER + "3.self_attn.o_proj.bias"),
    "a second output": ({"lm_head.bias": torch.ones(4)}, "1 unknown: lm_head.bias"),
    "a missing tensor": ({LAYER + "0.linear_attn.A_log": None}, "1 missing: " + LAYER + "0.linear_attn.A_log"),
    "a tensor of another shape": ({LAYER + "3.self_attn.q_proj.weight": torch.ones(256, 32)}, "q_proj.weight has shape [256, 32]"),
    "an expert stored in both forms": ({LAYER + "1.mlp.experts.0.down_proj.weight": torch.ones(64, 32)}, "down_proj.weight twice"),
}


@pytest.fixture(scope="module")
def folders(tiny_model, tmp_path_factory) -> dict[str, Path]:
    """Models by the form of their weights."""
    root = tmp_path_factory.mktemp("forms")
    outside = tensors_outside_the_model()
    dense = write_tiny_model(root / "dense", "test-dense", tie_word_embeddings=True)
    output = load_file(dense / "model.safetensors")[EMBEDDING].clone()
    published = {  # dtypes as in the published folders
        name: tensor if name.endswith(("A_log", "linear_attn.norm.weight")) else tensor.bfloat16()
        for name, tensor in load_file(tiny_model / "model.safetensors").items()
    }
    made = {
        "published": rewrite_weights(tiny_model, root / "published", num_files=2, extra=published),
        "tiny": tiny_model,
        "everything": rewrite_weights(tiny_model, root / "everything", num_files=3, fused=(1, 3), bfloat16=(0, 3), extra=outside),
        "fused": rewrite_weights(tiny_model, root / "fused", fused=(0, 1, 2, 3)),
        "tied": rewrite_weights(dense, root / "tied", num_files=2, extra={"lm_head.weight": output}),
    }
    other = output.clone()
    other[-1, -1] += 1e-3
    made["broken tied"] = rewrite_weights(dense, root / "broken_tied", extra={"lm_head.weight": other})
    for number, (extra, _) in enumerate(BROKEN.values()):
        made[f"broken{number}"] = rewrite_weights(tiny_model, root / f"broken{number}", fused=(1,), extra=extra)
    return made


@pytest.fixture(scope="module")
def outcome(folders, tmp_path_factory):
    """Exports by layout and form, and what is said of the broken folders: all in one start of Python."""
    root = tmp_path_factory.mktemp("exports")
    cases = {name: ("everything", name, {}) for name in LAYOUTS} | FORMS
    layouts = LAYOUTS | {"tp2_pp2": (4, {"tp": 2, "pp": 2})}
    calls = []
    for name, (model, layout, settings) in cases.items():
        world_size, sizes = layouts[layout]
        call = {"model_path": str(folders[model]), "target": str(root / name), **settings}
        calls.append(("tests.engine.export_ranks:load_and_export", ParallelConfig(**sizes), world_size, call))
    broken = [str(folder) for name, folder in folders.items() if name.startswith("broken")]
    calls.append(("tests.engine.export_ranks:refusals", ParallelConfig(), 1, {"folders": broken}))
    [said] = fork_each(calls)[-1]
    return {name: (folders[model], root / name) for name, (model, _, _) in cases.items()} | dict(zip(["broken tied", *BROKEN], said))


@pytest.mark.parametrize("case", [*LAYOUTS, *FORMS])
def test_every_file_comes_back_byte_for_byte(case, outcome):
    source, target = outcome[case]
    assert sorted(path.name for path in target.iterdir()) == sorted(path.name for path in source.iterdir())
    for path in source.iterdir():
        assert (target / path.name).read_bytes() == path.read_bytes(), path.name
    assert not target.with_name(target.name + ".tmp").exists()


@pytest.mark.parametrize("fault", BROKEN)
def test_a_folder_that_is_not_its_configs_model_is_refused_before_anything_is_built(fault, outcome):
    assert BROKEN[fault][1] in outcome[fault]


def test_a_tied_model_with_another_output_weight_is_refused(folders, outcome):
    assert outcome["broken tied"] == f"lm_head.weight in {folders['broken tied']} differs from {EMBEDDING}"


def test_a_tied_model_exports_its_embedding_as_output_weight_too(outcome):
    _, target = outcome["tied_with_an_output_weight_all_the_same"]
    tensors = {name: tensor for file in target.glob("*.safetensors") for name, tensor in load_file(file).items()}
    assert torch.equal(tensors["lm_head.weight"], tensors[EMBEDDING])
