"""CISPO: "MiniMax-M1", 2025 (arXiv 2506.13585), equations 4 and 5."""

from tandem.algorithms.losses.ratios import log_ratios
from tandem.algorithms.losses.types import LossBatch, LossOutput
from tandem.config.schema import AlgorithmConfig


def cispo(batch: LossBatch, settings: AlgorithmConfig) -> LossOutput:
    """-stop_gradient(clip(ratio, 1 - clip_low, 1 + clip_high)) * A * log p: REINFORCE with bounded weights.

    Every token keeps a gradient. The paper has no lower bound: `algorithm.clip_low=1`. `clipped_R` says whose weight was bounded.
    """
    ratio = log_ratios(batch).detach().exp()
    weight = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    return LossOutput(-weight * batch.advantages_R * batch.logprobs_R, weight != ratio)
