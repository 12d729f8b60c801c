"""GRPO: Shao et al., "DeepSeekMath", 2024 (arXiv 2402.03300), section 4.1.2, outcome supervision."""

import numpy as np

from tandem.algorithms.advantages.grouping import centred, members_of
from tandem.algorithms.advantages.types import AdvantageBatch
from tandem.config.schema import AlgorithmConfig

EPSILON = 1e-6  # keeps the division finite; far below any standard deviation of rewards that differ


def grpo(batch: AdvantageBatch, settings: AlgorithmConfig) -> np.ndarray:
    """(r - mean of the group) / (standard deviation of the group + 1e-6), the deviation with Bessel's correction.

    With `norm_by_std` off the centred reward itself. A group whose rewards are all equal, or of one sample, gets exactly 0.
    """
    advantages = centred(batch.rewards_B, batch.groups_B)
    return by_group_std(advantages, batch) if settings.norm_by_std else advantages


def by_group_std(advantages_B: np.ndarray, batch: AdvantageBatch) -> np.ndarray:
    """Each divided by (standard deviation of its group's rewards + 1e-6); as it is in a group of one."""
    out = advantages_B.copy()
    for members in members_of(batch.groups_B):
        if members.sum() > 1:
            out[members] /= batch.rewards_B[members].astype(np.float64).std(ddof=1) + EPSILON
    return out
