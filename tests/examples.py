"""Inputs shared by tests and benchmarks: a tiny model folder, and sequences made with its own processor."""

import json
import shutil
from pathlib import Path

from tandem.rehearse.standin import CORPUS, make_sequences

__all__ = ["make_sequences", "rewrite_weights", "tensors_outside_the_model", "write_tiny_model"]


def write_tiny_model(folder: Path, size: str, **options) -> Path:
    """A random model of one of `tandem.qwen3_5.tiny.SIZES`; returns `folder`."""
    from tandem.qwen3_5.tiny import make_tiny_model

    make_tiny_model(folder, CORPUS, seed=1, size=size, **options)
    return folder


def rewrite_weights(
    source: Path,
    target: Path,
    *,
    num_files: int = 1,
    fused: tuple[int, ...] = (),
    bfloat16: tuple[int, ...] = (),
    extra: dict | None = None,
) -> Path:
    """The tiny model of `source` with its weights stored in another form; returns `target`.

    Args:
        num_files: more than one makes an index too.
        fused: layers whose experts are stored as one tensor, `gate_up_proj` and `down_proj`.
        bfloat16: layers whose tensors are stored in it.
        extra: more tensors, by name; one that is None is left out.
    """
    import torch
    from safetensors.torch import load_file, save_file

    weights = "model.safetensors"
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(weights))
    tensors = load_file(source / weights)
    for layer in fused:
        prefix = f"model.language_model.layers.{layer}.mlp.experts."
        experts = {name: tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}
        gate, up, down = (
            torch.stack([experts[f"{prefix}{i}.{part}_proj.weight"] for i in range(len(experts) // 3)]) for part in ("gate", "up", "down")
        )
        tensors |= {prefix + "gate_up_proj": torch.cat([gate, up], 1), prefix + "down_proj": down}
    for layer in bfloat16:
        tensors |= {name: x.bfloat16() for name, x in tensors.items() if name.startswith(f"model.language_model.layers.{layer}.")}
    tensors = {name: tensor for name, tensor in (tensors | (extra or {})).items() if tensor is not None}
    names = sorted(tensors)
    files = [f"model-{i + 1:05d}-of-{num_files:05d}.safetensors" for i in range(num_files)] if num_files > 1 else [weights]
    for i, file in enumerate(files):
        save_file({name: tensors[name] for name in names[i::num_files]}, target / file, metadata={"format": "pt", "written_by": "a test"})
    if num_files > 1:
        weight_map = {name: files[i % num_files] for i, name in enumerate(names)}
        index = {"metadata": {"total_size": sum(x.nbytes for x in tensors.values())}, "weight_map": weight_map}
        (target / f"{weights}.index.json").write_text(json.dumps(index, indent=2))
    return target


def tensors_outside_the_model() -> dict:
    """Multi-token-prediction tensors named as in the published models, and one that nobody knows, of an odd number of bytes."""
    import torch

    return {
        "mtp.fc.weight": torch.randn(64, 128).bfloat16(),
        "mtp.layers.0.mlp.experts.gate_up_proj": torch.randn(2, 6, 5).bfloat16(),
        "mtp.norm.weight": torch.randn(64),
        "value_head.counts": torch.arange(7, dtype=torch.int8),
    }
