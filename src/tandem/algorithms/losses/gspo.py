"""GSPO: Zheng et al., "Group Sequence Policy Optimization", 2025 (arXiv 2507.18071), equations 5 to 7; GSPO-token, equations 13 and 14.

Its ratios are far nearer to 1 than those of tokens: the paper clips at 3e-4 below and 4e-4 above.
`algorithm.aggregation=sequence_mean` is its average.
"""

from tandem.algorithms.losses.ppo_clip import clipped_surrogate
from tandem.algorithms.losses.ratios import log_ratios, sequence_means
from tandem.algorithms.losses.types import LossBatch, LossOutput
from tandem.config.schema import AlgorithmConfig


def gspo(batch: LossBatch, settings: AlgorithmConfig) -> LossOutput:
    """PPO's clipped loss with one ratio a sequence, exp(mean log ratio of its tokens)."""
    return clipped_surrogate(sequence_means(log_ratios(batch), batch).exp(), batch.advantages_R, settings)


def gspo_token(batch: LossBatch, settings: AlgorithmConfig) -> LossOutput:
    """The same values and clips, but each token's gradient is its own: right also where advantages differ within a sequence.

    ratio = stop_gradient(sequence's ratio) * p / stop_gradient(p)
    """
    of_sequence = sequence_means(log_ratios(batch), batch).detach()
    own = batch.logprobs_R - batch.logprobs_R.detach()
    return clipped_surrogate((of_sequence + own).exp(), batch.advantages_R, settings)
