"""What the forked ranks of `test_policy_steps.py` run. Imported in rank processes, never by pytest itself."""

import numpy as np
import torch

from tandem.config.schema import AlgorithmConfig, BatchConfig, ParallelConfig
from tandem.data.types import Sequence
from tests.engine.ranks import make_engine


def policy_steps(model_path: str, parallel: ParallelConfig, batches: dict[str, tuple[dict, list[Sequence]]], cuts: dict[str, dict]) -> dict:
    """Of each cut (settings of `batch`): metrics of one update of each batch (its `algorithm` settings, its sequences).

    All are by the same weights: the learning rate is 0. Of a single rank also the scores, and what weight decay does.
    """
    engine = make_engine(model_path, parallel)
    engine.start_optimizer(lr=0.0, weight_decay=0.0)
    metrics: dict[str, dict] = {cut: {} for cut in cuts}
    for cut, batch in cuts.items():
        for name, (algorithm, sequences) in batches.items():
            settings = {"algorithm": AlgorithmConfig.model_validate(algorithm), "batch": BatchConfig.model_validate(batch)}
            engine.config = engine.config.model_copy(update=settings)
            metrics[cut][name] = engine.update(sequences, lr=0.0, kl_coef=algorithm.get("kl", {}).get("coef", 0.0))
    if torch.distributed.get_world_size() > 1:
        return metrics
    return metrics | {"scores": engine.scores(sequences, temperature=1.0), "decay": decay(engine, sequences)}


def decay(engine, sequences: list[Sequence]) -> dict[str, float]:
    """By Hugging Face name: the largest |after / before - 1| of a step whose gradients are all 0, with weight decay."""
    engine.start_optimizer(lr=0.1, weight_decay=0.1)
    before = {name: tensor.numpy().copy() for name, tensor in engine.tensors()}
    for sequence in sequences:
        sequence.fields["weights"] = np.zeros_like(sequence.fields["weights"])
    engine.update(sequences, supervised=True, lr=0.1)
    after = {name: tensor.numpy().copy() for name, tensor in engine.tensors()}
    return {name: float(np.abs(after[name] / np.where(was == 0, 1, was) - (was != 0)).max()) for name, was in before.items()}
