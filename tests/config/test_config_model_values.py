"""A model that Tandem would misread or cannot train is refused from its folder, before ranks start; transformers' defaults pass."""

import json
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.cli.prepare import prepare
from tandem.config.modelfolder import check_model
from tandem.config.modelvalues import check_values
from tandem.config.schema import ParallelConfig
from tandem.errors import UserError
from tandem.qwen3_5.tiny import SIZES
from tests.config.test_config_preflight import split
from tests.examples import write_tiny_model

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
TEXT = {  # changes of text_config, what is told
    "rope_parameters.rope_type = 'yarn'": {"rope_parameters": YARN},
    "rope_parameters.rope_type = 'linear'": {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
    "rope_parameters.rope_type = 'dynamic'": {"rope_parameters": {"type": "dynamic", "factor": 2.0}},
    "rope_scaling.rope_type = 'yarn'": {"rope_scaling": YARN},
    "rope_parameters = 'default'": {"rope_parameters": "default"},
    "rope_parameters.mrope_section = [3, 3, 1]": {"rope_parameters": {"partial_rotary_factor": 0.5, "mrope_section": [3, 3, 1]}},
    "hidden_act = 'gelu'": {"hidden_act": "gelu"},
    "output_gate_type = 'sigmoid'": {"output_gate_type": "sigmoid"},
    "attn_output_gate = False": {"attn_output_gate": False},
    "norm_topk_prob = False": {"norm_topk_prob": False},
    "num_attention_heads = '4'": {"num_attention_heads": "4"},
    "num_attention_heads = 4.5": {"num_attention_heads": 4.5},
    "num_attention_heads = 5": {"num_attention_heads": 5},
    "num_key_value_heads = None": {"num_key_value_heads": None},
    "num_key_value_heads = True": {"num_key_value_heads": True},
    "num_attention_heads = 4": {"num_key_value_heads": 3},
    "linear_num_value_heads = {}": {"linear_num_value_heads": {}},
    "linear_num_value_heads = 8": {"linear_num_key_heads": 3},
    "num_hidden_layers = 0": {"num_hidden_layers": 0},
    "num_hidden_layers = -4": {"num_hidden_layers": -4},
    "vocab_size = '384'": {"vocab_size": "384"},
    "num_experts = -8": {"num_experts": -8},
    "num_experts = None": {"num_experts": None},
    "num_experts_per_tok = 9": {"num_experts_per_tok": 9},
    "num_experts_per_tok = 1": {"num_experts_per_tok": 1},
    "moe_intermediate_size = 0": {"moe_intermediate_size": 0},
    "layer_types = ['linear_attention'": {"layer_types": ["linear_attention"] * 3},
    "layer_types = ['sliding_attention'": {"layer_types": ["sliding_attention"] * 4},
}
TOP = {
    "vision_config.num_heads = '4'": {"vision_config": {"num_heads": "4"}},
    "has no image_token_id": {"image_token_id": None},
    "has video_token_id = '298'": {"video_token_id": "298"},
}


def config_of(model: Path) -> dict:
    return json.loads((model / "config.json").read_text())


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def write_config(model: Path, **changes: object) -> None:
    config = {key: value for key, value in (config_of(model) | changes).items() if value is not None}
    (model / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("told", [*TEXT, *TOP])
def test_a_value_that_cannot_be_or_would_be_read_past_is_refused_by_name(told: str, model: Path) -> None:
    config = config_of(model)
    changes = dict(TOP[told]) if told in TOP else {"text_config": TEXT[told]}
    for part in ("text_config", "vision_config"):
        if part in changes:
            changes[part] = config[part] | changes[part]
    write_config(model, **changes)
    with pytest.raises(UserError) as caught:
        check_model(str(model), ParallelConfig(tp=2, ep=2, pp=2, cp=2, vision_tp=True))
    assert told in caught.value.what and str(model / "config.json") in caught.value.what


def test_transformers_own_configs_pass_with_and_without_their_defaults() -> None:
    from transformers import Qwen3_5Config, Qwen3_5MoeConfig

    for kind in (Qwen3_5Config, Qwen3_5MoeConfig):
        check_values(kind().to_dict(), "a config")
    check_values({"text_config": {}, "vision_config": {}, "image_token_id": 1, "video_token_id": 2}, "a config")


def rewrite_header(model: Path, change, file: str = "model.safetensors") -> None:
    path = model / file
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    raw = change(json.loads(content[8 : 8 + length]))
    raw = raw if isinstance(raw, bytes) else json.dumps(raw).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + content[8 + length :])


NORM, OTHER = "model.language_model.norm.weight", "mtp.norm.weight"
HEADERS = {  # change of a tensor's entry; all of them keep the file's length
    "offsets of its neighbour": lambda entry: entry | {"data_offsets": [0, 256]},
    "a shape of words": lambda entry: entry | {"shape": ["64"]},
    "a negative shape": lambda entry: entry | {"shape": [-1, -64]},
    "a shape too large": lambda entry: entry | {"shape": [128]},
    "fractional offsets": lambda entry: entry | {"data_offsets": [float(x) for x in entry["data_offsets"]]},
    "a dtype that is a number": lambda entry: entry | {"dtype": 3},
}


@pytest.mark.parametrize("change", HEADERS)
def test_a_header_that_cannot_be_is_told_before_a_rank_reads_it(change: str, model: Path) -> None:
    rewrite_header(model, lambda header: header | {NORM: HEADERS[change](header[NORM])})
    with pytest.raises(UserError, match="not a whole safetensors file"):
        check_model(str(model), ParallelConfig())


def test_metadata_that_is_no_text_is_told_before_a_rank_reads_it(model: Path) -> None:
    rewrite_header(model, lambda header: header | {"__metadata__": {"epoch": 1}})
    with pytest.raises(UserError, match="not a whole safetensors file"):
        check_model(str(model), ParallelConfig())


def test_a_header_or_a_config_too_deep_to_parse_is_told(model: Path) -> None:
    rewrite_header(model, lambda _: b"[" * 100_000)
    with pytest.raises(UserError, match="not a whole safetensors file"):
        check_model(str(model), ParallelConfig())
    (model / "config.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match="not valid JSON"):
        check_model(str(model), ParallelConfig())


@pytest.mark.parametrize("file", [["a.safetensors"], 1, None, {}])
def test_an_index_that_names_no_files_is_told(file: object, model: Path) -> None:
    split(model, ("a.safetensors",))
    index = json.loads((model / "model.safetensors.index.json").read_text())
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index["weight_map"] | {NORM: file}}))
    with pytest.raises(UserError, match=f"names no file for {NORM}"):
        check_model(str(model), ParallelConfig())


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I32", "X9"])
def test_a_quantised_tensor_of_the_model_is_refused_by_name_and_one_outside_is_not(dtype: str, model: Path) -> None:
    items = 4 if dtype == "F8_E4M3" else 1
    rewrite_header(model, lambda header: header | {NORM: header[NORM] | {"dtype": dtype, "shape": [64 * items]}})
    with pytest.raises(UserError, match=f"{NORM} in .* is stored as {dtype}"):
        check_model(str(model), ParallelConfig())
    rewrite_header(model, lambda header: {OTHER if name == NORM else name: entry for name, entry in header.items()})
    check_model(str(model), ParallelConfig())


def test_a_dry_run_looks_at_a_local_model_too(model: Path) -> None:
    with pytest.raises(UserError, match=r"parallel\.pp = 8 does not divide the model's num_hidden_layers = 4"):
        prepare("demo", [f"model.path={model}", "parallel.pp=8", "trainer.devices_per_node=8"], dry_run=True, env={})


def test_experts_cannot_be_replayed_where_there_are_none(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "dense", replace(SIZES["test"], num_experts=0))
    with pytest.raises(UserError, match=r"rollout\.router_replay with a model without experts"):
        prepare("demo", [f"model.path={model}", "rollout.router_replay=true"], dry_run=True, env={})


@pytest.mark.parametrize("dry_run", [True, False])
def test_the_demos_own_model_is_checked_before_it_is_made(dry_run: bool) -> None:
    with pytest.raises(UserError, match=r"parallel\.tp = 4 is more than the model's 2 key-value heads"):
        prepare("demo", ["parallel.tp=4", "trainer.devices_per_node=4", "data.train_batch_size=32"], dry_run=dry_run, env={})
