"""PPO's clipped surrogate: Schulman et al., 2017 (arXiv 1707.06347), equation 7. Separate bounds: DAPO, 2025 (arXiv 2503.14476).
Dual clip: Ye et al., 2020 (arXiv 1912.09729), equation 5."""

import torch
from torch import Tensor

from tandem.algorithms.losses.ratios import log_ratios
from tandem.algorithms.losses.types import LossBatch, LossOutput
from tandem.config.schema import AlgorithmConfig


def ppo_clip(batch: LossBatch, settings: AlgorithmConfig) -> LossOutput:
    """-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A); with dual clip, not above clip_dual * -A where A < 0."""
    return clipped_surrogate(log_ratios(batch).exp(), batch.advantages_R, settings)


def clipped_surrogate(ratio_R: Tensor, advantages_R: Tensor, settings: AlgorithmConfig) -> LossOutput:
    """PPO's loss for any ratio, of tokens or of sequences."""
    free = -ratio_R * advantages_R
    clipped = -ratio_R.clamp(1 - settings.clip_low, 1 + settings.clip_high) * advantages_R
    loss = torch.maximum(free, clipped)
    is_clipped = clipped > free
    if settings.clip_dual > 0:
        bound = -settings.clip_dual * advantages_R
        beyond = (advantages_R < 0) & (loss > bound)
        loss = torch.where(beyond, bound, loss)
        is_clipped = is_clipped | beyond
    return LossOutput(loss, is_clipped)
