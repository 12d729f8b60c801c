"""Dr. GRPO: Liu et al., "Understanding R1-Zero-Like Training", 2025 (arXiv 2503.20783)."""

import numpy as np

from tandem.algorithms.advantages.grouping import centred
from tandem.algorithms.advantages.types import AdvantageBatch
from tandem.config.schema import AlgorithmConfig


def dr_grpo(batch: AdvantageBatch, settings: AlgorithmConfig) -> np.ndarray:
    """r - mean of the group, never divided by the deviation, which would favour questions that are nearly always or nearly never solved.

    Its other half, no division by the response's length, is `algorithm.aggregation=constant`.
    """
    return centred(batch.rewards_B, batch.groups_B)
