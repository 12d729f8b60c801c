"""RLOO: Ahmadian et al., "Back to Basics", 2024 (arXiv 2402.14740)."""

import numpy as np

from tandem.algorithms.advantages.grouping import centred
from tandem.config.schema import AlgorithmConfig


def rloo(rewards_B: np.ndarray, groups_B: np.ndarray, settings: AlgorithmConfig) -> np.ndarray:
    """r - mean of the group's other samples, which equals n / (n - 1) times the centred reward. A group of one gets 0."""
    advantages = centred(rewards_B, groups_B)
    for group in np.unique(groups_B):
        members = groups_B == group
        n = int(members.sum())
        advantages[members] *= n / (n - 1) if n > 1 else 0.0
    return advantages
