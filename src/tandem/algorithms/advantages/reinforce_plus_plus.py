"""REINFORCE++: Hu et al., "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization", 2025
(arXiv 2501.03262), equations 7 and 8; statistics over the batch's tokens, as in the authors' OpenRLHF."""

import numpy as np

from tandem.algorithms.advantages.grouping import centred, token_mean_and_std
from tandem.algorithms.advantages.types import AdvantageBatch
from tandem.config.schema import AlgorithmConfig

EPSILON = 1e-8


def reinforce_plus_plus(batch: AdvantageBatch, settings: AlgorithmConfig) -> np.ndarray:
    """(r - mean) / (standard deviation + 1e-8), both over all tokens of the whole batch; no groups. All rewards equal: exactly 0.

    The KL term belongs in the reward (`algorithm.kl.where=reward`) and is that of the whole response.
    """
    mean, std = token_mean_and_std(batch.rewards_B, batch.lengths_B)
    return (batch.rewards_B.astype(np.float64) - mean) / (std + EPSILON)


def reinforce_plus_plus_baseline(batch: AdvantageBatch, settings: AlgorithmConfig) -> np.ndarray:
    """(r - mean of the group) / (standard deviation of these differences over all tokens of the batch + 1e-8).

    The batch's mean is not taken off as well: over samples it is 0, and a group whose rewards are all equal keeps exactly 0.
    """
    advantages = centred(batch.rewards_B, batch.groups_B)
    _, std = token_mean_and_std(advantages, batch.lengths_B)
    return advantages / (std + EPSILON)
