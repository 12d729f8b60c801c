"""Inputs shared by tests and benchmarks: a tiny model folder, and sequences made with its own processor."""

import json
import shutil
from pathlib import Path


def write_tiny_model(folder: Path, size: str, **options) -> Path:
    """A random model of one of `tandem.qwen3_5.tiny.SIZES`; returns `folder`."""
    from tandem.qwen3_5.tiny import make_tiny_model

    corpus = ["What is the area?", "<think>\nthe digit is 7\n</think>\n\n\\boxed{7}", "0123456789 = + * / ( ) 12 34 56"] * 20
    make_tiny_model(folder, corpus, seed=1, size=size, **options)
    return folder


def make_sequences(model: Path) -> list:
    """Nine prompts with random responses: text, one image, two images of different shapes; lengths from a few tokens past a chunk of 64."""
    import numpy as np

    from tandem.config.schema import DataConfig
    from tandem.data.demo.sample import encode_png
    from tandem.data.prompts import PromptBuilder
    from tandem.data.types import Row, Sequence

    rng = np.random.default_rng(0)
    builder = PromptBuilder(str(model), DataConfig())
    result = []
    for number, (num_images, num_response) in enumerate([(0, 1), (1, 5), (2, 17), (0, 40), (1, 64), (0, 90), (2, 3), (1, 30), (0, 33)]):
        images = [_image(rng, 32 + 16 * (k + number) % 48, 48) for k in range(num_images)]
        content = "<image>" * num_images + "What is the area? " + "12 + " * (number % 4)
        row = Row(f"test.parquet:{number}", "test", [{"role": "user", "content": content}], [encode_png(x) for x in images], "7", {})
        response = rng.integers(0, 256, num_response)
        fields = {"weights": np.ones(num_response, np.float32)}
        result.append(Sequence(builder.build(row), response, fields))
    total = sum(len(s.response_ids) for s in result)
    for sequence in result:
        sequence.fields["weights"] /= total
    return result


def _image(rng, width: int, height: int):
    from PIL import Image

    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype="uint8"))


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
