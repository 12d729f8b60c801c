"""Loading reads a rank's slice and nothing else of files far larger."""

import json
import struct
from pathlib import Path

import pytest

from tandem.qwen3_5.checkpoint import HuggingFaceFolder
from tandem.qwen3_5.rules import Columns, GatedQKV, HeadMajor, Rows, Stacked
from tests.memory import peak_growth

MIB = 1 << 20
LAYER = "model.language_model.layers.0."
SHAPES = {  # F32
    "model.language_model.embed_tokens.weight": (65536, 1024),
    "model.visual.blocks.0.attn.qkv.weight": (3 * 16 * 1024, 1024),
    LAYER + "self_attn.q_proj.weight": (64 * 2 * 256, 2048),
    LAYER + "self_attn.k_proj.weight": (8 * 256, 2048),
    LAYER + "self_attn.v_proj.weight": (8 * 256, 2048),
    LAYER + "self_attn.o_proj.weight": (8, 8 * MIB),  # long rows: the system maps 2 MiB of a file at a time
    LAYER + "linear_attn.in_proj_qkv.weight": (65536, 1024),
    LAYER + "mlp.experts.gate_up_proj": (64, 1024, 1024),
}
CASES = {  # tensors, rule, MiB of one of 8 ranks
    "rows": (["model.language_model.embed_tokens.weight"], Rows(), 32),
    "attention": ([LAYER + f"self_attn.{x}_proj.weight" for x in "qkv"], GatedQKV(64, 8, 256), 36),
    "vision_heads": (["model.visual.blocks.0.attn.qkv.weight"], HeadMajor(16), 24),
    "columns": ([LAYER + "self_attn.o_proj.weight"], Columns(), 32),
    "stacked": ([LAYER + "linear_attn.in_proj_qkv.weight"], Stacked(((16384, 16384, 32768),)), 32),
    "fused_expert": ([LAYER + f"mlp.experts.5.{x}_proj.weight" for x in ("gate", "up")], Stacked(((512,), (512,))), 0.5),
}


@pytest.fixture(scope="module")
def large_folder(tmp_path_factory) -> Path:
    """1.5 GiB of zeros that take no room on the disk."""
    folder, at, header = tmp_path_factory.mktemp("large"), 0, {}
    for name, shape in SHAPES.items():
        size = 4
        for length in shape:
            size *= length
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": (at, at + size)}
        at += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_a_rank_of_eight_touches_its_slice_only(case, large_folder):
    names, rule, share = CASES[case]
    folder = HuggingFaceFolder(large_folder)
    whole = sum(folder.get(name).nbytes for name in names)
    growth = peak_growth(lambda: rule.split([folder.get(name) for name in names], 3, 8).clone())
    # pages of the file, what is put together of them, and its clone
    assert share * MIB <= growth <= 3 * share * MIB + 4 * MIB, f"{growth / MIB:.1f} MiB of {whole / MIB:.0f}"
    assert folder.get(names[0]).sum() == 0
