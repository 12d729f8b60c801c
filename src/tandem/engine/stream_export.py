"""A checkpoint's policy as a Hugging Face folder without an engine: one process reads one group of tensors after the other and writes it.

The model is built without memory, for its names, shapes and places in a checkpoint of any layout; what is read is that of one process.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tandem.config.schema import Config, ParallelConfig
from tandem.devices import cpu
from tandem.devices.parts import choose_parts
from tandem.engine import loading
from tandem.engine.export import Piece, write_tensors
from tandem.qwen3_5 import weights
from tandem.qwen3_5.build import build_chunks
from tandem.qwen3_5.checkpoint import HuggingFaceFolder
from tandem.qwen3_5.config import read_config, transformer_config
from tandem.qwen3_5.model import Qwen3_5Model

GROUP_BYTES = 1 << 30  # read at a time; a single parameter may have more


def stream(
    parallel: ParallelConfig, trainers: str, config: Config, source: str, target: str, group_bytes: int = GROUP_BYTES
) -> list[Piece]:
    """Write every tensor of the model into the weight files of `target`, in their dtypes. For `fork_ranks`, on one rank.

    Args:
        trainers: the ranks' files of a checkpoint.
        config: of the run.
        source: the start model.
        target: its weight files are there at full size; their headers say in which dtypes.
    """
    config = config.model_copy(update={"parallel": parallel, "device": "cpu"})
    hf_config = read_config(source)
    model, layout = (HuggingFaceFolder(folder, tied=hf_config.tie_word_embeddings) for folder in (source, target))
    chunk = _without_memory(config, hf_config)
    return write_tensors(tensors(chunk, Path(trainers), model, group_bytes), model, layout, Path(target))


def _without_memory(config: Config, hf_config) -> Qwen3_5Model:
    model_config = transformer_config(hf_config, config, parts := choose_parts(cpu, "portable"))
    ours = torch.cuda.current_device
    torch.cuda.current_device = lambda: torch.device("meta")  # where Megatron makes its parameters
    try:
        [chunk] = build_chunks(model_config, hf_config, parts)
    finally:
        torch.cuda.current_device = ours
    assert all(parameter.is_meta for parameter in chunk.parameters()), "a parameter has memory"
    return chunk


@torch.no_grad()
def tensors(chunk: Qwen3_5Model, trainers: Path, source: HuggingFaceFolder, group_bytes: int) -> Iterator[tuple[str, Tensor]]:
    """Hugging Face tensors of the model in the checkpoint, each once. Beyond one group, one stored part of a parameter is in memory."""
    shards = chunk.sharded_state_dict()
    for group in _groups(chunk, group_bytes):
        wanted = {}
        for entry in group:
            shard, dtype = shards[entry.megatron], chunk.get_parameter(entry.megatron).dtype
            if entry.megatron.endswith(weights.FP32) and source.get(entry.hf[0]).dtype == torch.float32:
                dtype = torch.float32
            wanted[entry.megatron] = _with_memory(shard, dtype)
        loaded = loading.load(wanted, trainers, validate_access_integrity=False)
        for entry in group:
            yield from zip(entry.hf, entry.rule.merge([loaded[entry.megatron]]))


def _groups(chunk: Qwen3_5Model, group_bytes: int) -> Iterator[list[weights.Entry]]:
    group, num_bytes = list[weights.Entry](), 0
    for entry in weights.weight_map(chunk):
        size = chunk.get_parameter(entry.megatron).nbytes
        if group and num_bytes + size > group_bytes:
            yield group
            group, num_bytes = [], 0
        group.append(entry)
        num_bytes += size
    if group:
        yield group


def _with_memory(shard: Any, dtype: torch.dtype) -> Any:
    """Megatron's description of a parameter, with a tensor to read into."""
    shard.data = torch.empty(shard.data.shape, dtype=dtype)
    if hasattr(shard, "dtype"):
        shard.dtype = dtype
    return shard
