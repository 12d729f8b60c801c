"""ReMax: Li et al., "ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method", 2023 (arXiv 2310.10505), equation 5."""

import numpy as np

from tandem.algorithms.advantages.types import AdvantageBatch
from tandem.config.schema import AlgorithmConfig


def remax(batch: AdvantageBatch, settings: AlgorithmConfig) -> np.ndarray:
    """r - reward of the greedy response to the same prompt. It needs no group: one sample a prompt will do."""
    assert batch.greedy_rewards_B is not None, "no greedy responses were made"
    return batch.rewards_B.astype(np.float64) - batch.greedy_rewards_B
