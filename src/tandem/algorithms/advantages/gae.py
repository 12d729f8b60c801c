"""Generalized advantage estimation: Schulman et al., 2015 (arXiv 1506.02438), equations 11 and 16; as PPO uses it, Schulman et al., 2017
(arXiv 1707.06347), equation 11. Whitened over the batch's tokens: Huang et al., "The N Implementation Details of RLHF with PPO", 2023.
"""

import numpy as np

from tandem.algorithms.advantages.grouping import token_mean_and_std
from tandem.algorithms.advantages.types import AdvantageBatch
from tandem.config.schema import AlgorithmConfig

EPSILON = 1e-8


def gae(batch: AdvantageBatch, settings: AlgorithmConfig) -> list[np.ndarray]:
    """The advantage of every token of every sample, whitened over all tokens if `settings.whiten`: where all are equal, exactly 0."""
    each = [generalized(r, v, settings.gamma, settings.lam) for r, v in _tokens(batch)]
    if not settings.whiten:
        return each
    tokens = np.concatenate(each)
    mean, std = token_mean_and_std(tokens, np.ones(len(tokens)))
    return [(advantages_R - mean) / (std + EPSILON) for advantages_R in each]


def value_targets(batch: AdvantageBatch, settings: AlgorithmConfig) -> list[np.ndarray]:
    """What each value should have been, [R] of every sample: the advantage before whitening plus the value, the lambda-return."""
    return [generalized(r, v, settings.gamma, settings.lam) + v for r, v in _tokens(batch)]


def generalized(rewards_R: np.ndarray, values_R: np.ndarray, gamma: float, lam: float) -> np.ndarray:
    """[R] float64: A_t = delta_t + gamma lam A_{t+1}, delta_t = r_t + gamma V_{t+1} - V_t; nothing comes after the last token.

    Args:
        rewards_R: of each token, what the whole response earns at its last.
        values_R: of the state that each token was chosen in.
    """
    rewards_R, values_R = rewards_R.astype(np.float64), values_R.astype(np.float64)
    deltas_R = rewards_R + gamma * np.append(values_R[1:], 0.0) - values_R
    advantages_R, following = np.empty(len(deltas_R)), 0.0
    for t in range(len(deltas_R) - 1, -1, -1):
        advantages_R[t] = following = deltas_R[t] + gamma * lam * following
    return advantages_R


def _tokens(batch: AdvantageBatch) -> list[tuple[np.ndarray, np.ndarray]]:
    assert batch.token_rewards is not None and batch.values is not None, "a critic's values are needed"
    return list(zip(batch.token_rewards, batch.values))
