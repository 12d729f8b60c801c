"""RLOO: Ahmadian et al., "Back to Basics", 2024 (arXiv 2402.14740)."""

import numpy as np

from tandem.algorithms.advantages.grouping import centred, members_of
from tandem.algorithms.advantages.types import AdvantageBatch
from tandem.config.schema import AlgorithmConfig


def rloo(batch: AdvantageBatch, settings: AlgorithmConfig) -> np.ndarray:
    """r - mean of the group's other samples, which equals n / (n - 1) times the centred reward. A group of one gets 0."""
    advantages = centred(batch.rewards_B, batch.groups_B)
    for members in members_of(batch.groups_B):
        n = int(members.sum())
        advantages[members] *= n / (n - 1) if n > 1 else 0.0
    return advantages
