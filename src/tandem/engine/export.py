"""This rank's share of the model as Hugging Face safetensors files."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

MAX_FILE_BYTES = 4 << 30


def write_share(engine, path: Path, rank: int, max_file_bytes: int = MAX_FILE_BYTES) -> dict[str, str]:
    """Write the tensors that this rank publishes; collective like `weights.tensors`. Returns {tensor name: file name}."""
    path.mkdir(parents=True, exist_ok=True)
    file_of: dict[str, str] = {}
    pending: dict[str, Tensor] = {}
    num_files = 0

    def flush() -> None:
        nonlocal pending, num_files
        if pending:
            file = f"model-rank{rank:05d}-{num_files:05d}.safetensors"
            save_file(pending, path / file, metadata={"format": "pt"})
            file_of.update(dict.fromkeys(pending, file))
            pending, num_files = {}, num_files + 1

    for name, tensor in engine.tensors():
        if pending and sum(t.nbytes for t in pending.values()) + tensor.nbytes > max_file_bytes:
            flush()
        pending[name] = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    flush()
    return file_of
