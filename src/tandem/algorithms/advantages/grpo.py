"""GRPO: Shao et al., "DeepSeekMath", 2024 (arXiv 2402.03300), section 4.1.2, outcome supervision."""

import numpy as np

from tandem.algorithms.advantages.grouping import centred
from tandem.config.schema import AlgorithmConfig

EPSILON = 1e-6  # keeps the division finite; far below any standard deviation of rewards that differ


def grpo(rewards_B: np.ndarray, groups_B: np.ndarray, settings: AlgorithmConfig) -> np.ndarray:
    """(r - mean of the group) / (standard deviation of the group + 1e-6), the deviation with Bessel's correction.

    With `norm_by_std` off the centred reward itself. A group whose rewards are all equal, or of one sample, gets exactly 0.
    """
    advantages = centred(rewards_B, groups_B)
    if settings.norm_by_std:
        for group in np.unique(groups_B):
            members = groups_B == group
            if members.sum() > 1:
                advantages[members] /= rewards_B[members].astype(np.float64).std(ddof=1) + EPSILON
    return advantages
