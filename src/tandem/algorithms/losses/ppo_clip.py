"""PPO's clipped surrogate: Schulman et al., 2017 (arXiv 1707.06347), equation 7. Separate bounds: DAPO, 2025 (arXiv 2503.14476).
Dual clip: Ye et al., 2020 (arXiv 1912.09729), equation 5."""

import torch

from tandem.algorithms.losses.types import LossBatch, LossOutput
from tandem.config.schema import AlgorithmConfig

MAX_LOG_RATIO = 20.0  # exp(20) = 5e8: far outside any clip, and still finite in fp32


def ppo_clip(batch: LossBatch, settings: AlgorithmConfig) -> LossOutput:
    """-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A); with dual clip, not above clip_dual * -A where A < 0."""
    log_ratio = (batch.logprobs_R - batch.old_logprobs_R).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio, advantages = log_ratio.exp(), batch.advantages_R
    free = -ratio * advantages
    clipped = -ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high) * advantages
    loss = torch.maximum(free, clipped)
    is_clipped = clipped > free
    if settings.clip_dual > 0:
        bound = -settings.clip_dual * advantages
        beyond = (advantages < 0) & (loss > bound)
        loss = torch.where(beyond, bound, loss)
        is_clipped = is_clipped | beyond
    return LossOutput(loss, is_clipped)
