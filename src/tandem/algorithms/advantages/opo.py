"""OPO: Hao et al., "On-Policy RL with Optimal Reward Baseline", 2025 (arXiv 2505.23585), equation 7."""

import numpy as np

from tandem.algorithms.advantages.grouping import above
from tandem.algorithms.advantages.types import AdvantageBatch
from tandem.config.schema import AlgorithmConfig


def opo(batch: AdvantageBatch, settings: AlgorithmConfig) -> np.ndarray:
    """r - sum(length * r) / sum(length) over the group: the baseline of least variance, were all tokens' gradients alike and independent.

    An empty response counts as one token. A group whose rewards are all equal gets exactly 0.
    """
    return above(batch.rewards_B, batch.groups_B, np.maximum(batch.lengths_B, 1))
