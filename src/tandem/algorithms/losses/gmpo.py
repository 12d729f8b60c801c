"""GMPO: Zhao et al., "Geometric-Mean Policy Optimization", 2025 (arXiv 2507.20673), equation 4.

The paper clips ratios to (exp(-0.4), exp(0.4)): `algorithm.clip_low` and `clip_high` bound the log ratio here.
`algorithm.aggregation=sequence_mean` is its average.
"""

import torch

from tandem.algorithms.losses.ratios import log_ratios, sequence_means, sequence_sums
from tandem.algorithms.losses.types import LossBatch, LossOutput
from tandem.config.schema import AlgorithmConfig


def gmpo(batch: LossBatch, settings: AlgorithmConfig) -> LossOutput:
    """-A * geometric mean over the sequence of its tokens' ratios, each clipped as in PPO.

    A token's log ratio is bounded above by clip_high where A > 0, below by -clip_low where A < 0: the side on which it pushes no further.
    """
    log_ratio, advantages = log_ratios(batch), batch.advantages_R
    sign = torch.sign(sequence_sums(advantages, batch))  # of the sequence: a token whose correction is 0 still belongs to it
    bounded = log_ratio.clamp(max=settings.clip_high)
    bounded = torch.where(sign < 0, log_ratio.clamp(min=-settings.clip_low), torch.where(sign > 0, bounded, log_ratio))
    ratio = sequence_means(bounded, batch).exp()
    return LossOutput(-advantages * ratio, bounded != log_ratio)
