"""What each forked rank does: scores, an update, a checkpoint written and read, a publication's part; then it tells what it holds."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tandem.config.schema import Config, ParallelConfig
from tandem.data.types import Sequence

LR = 1e-3


@dataclass(frozen=True)
class Held:
    """Of one rank. Bytes are those of the stand-in."""

    rank: int
    stage: int
    layers: list[int]  # numbers of the decoder layers, counted from 0
    experts: list[int]  # of each of these layers
    num_parameters: int
    weight_bytes: int
    optimizer_bytes: int
    checkpoint_bytes: int
    published: list[str]  # Hugging Face names
    published_bytes: int


@dataclass(frozen=True)
class RankResult:
    held: Held
    scores: dict[int, np.ndarray]  # of the sequences that this rank reports
    loss: float  # this rank's share
    grad_norm: float
    reloaded_equal: bool  # scores after reading the checkpoint are those from before, bit for bit


def rehearse_rank(
    model_path: str, parallel: ParallelConfig, sequences: list[Sequence], folder: str, settings: dict[str, Any]
) -> RankResult:
    """One rank's part. Args: folder: where the checkpoint goes, empty; settings: other sections of the configuration."""
    import torch

    from tandem.devices import cpu
    from tandem.engine import checkpoint
    from tandem.engine.engine import Engine

    config = Config.model_validate({"device": "cpu", "model": {"dtype": "float32"}, "parallel": parallel.model_dump(), **settings})
    engine = Engine(config, model_path, cpu, banned_token_ids=[])
    before = engine.scores(sequences, temperature=1.0, masked=False)
    engine.start_optimizer(lr=LR, weight_decay=0.0)
    metrics = engine.update(sequences, supervised=True, lr=LR)
    written = checkpoint.save(engine, Path(folder))
    after = engine.scores(sequences, temperature=1.0, masked=False)
    engine.update(sequences, supervised=True, lr=LR)
    checkpoint.load(engine, Path(folder))
    again = engine.scores(sequences, temperature=1.0, masked=False)
    equal = all(np.array_equal(after[index][0], again[index][0]) for index in after)
    held = _held(engine, torch.distributed.get_rank(), sum((Path(folder) / name).stat().st_size for name in written))
    scores = {index: logprobs for index, (logprobs, _) in before.items()}
    return RankResult(held, scores, metrics.get("loss/policy", 0.0), metrics["grad_norm"], equal)


def _held(engine, rank: int, checkpoint_bytes: int) -> Held:
    from megatron.core import parallel_state

    from tandem.engine import offload

    parameters = [parameter for chunk in engine.chunks for parameter in chunk.parameters()]
    layers = sorted(layer.layer_number - 1 for chunk in engine.chunks for layer in chunk.decoder.layers)
    num_experts = getattr(engine.model_config, "num_moe_experts", None) or 0
    share = num_experts // parallel_state.get_expert_model_parallel_world_size()
    first = share * parallel_state.get_expert_model_parallel_rank()
    published = {name: tensor.nbytes for name, tensor in engine.tensors()}
    return Held(
        rank,
        parallel_state.get_pipeline_model_parallel_rank(),
        layers,
        list(range(first, first + share)),
        sum(parameter.numel() for parameter in parameters),
        sum(parameter.nbytes for parameter in parameters),
        sum(tensor.nbytes for tensor in offload.optimizer_tensors(engine.optimizer)),
        checkpoint_bytes,
        list(published),
        sum(published.values()),
    )
