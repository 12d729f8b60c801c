"""Pass@k: Tang et al., "Optimizing Language Models for Inference Time Objectives using Reinforcement Learning", 2025 (arXiv 2503.19595)."""

import numpy as np

from tandem.algorithms.advantages.grouping import members_of
from tandem.algorithms.advantages.grpo import by_group_std
from tandem.algorithms.advantages.types import AdvantageBatch
from tandem.config.schema import AlgorithmConfig


def grpo_passk(batch: AdvantageBatch, settings: AlgorithmConfig) -> np.ndarray:
    """The best reward of the group less the best one without the sample: the best sample's lead over the second best, 0 for all others.

    The group of k samples is worth its best reward. With `norm_by_std` divided as in GRPO. Where several are best all get exactly 0,
    as does a group of one.
    """
    advantages = np.zeros(len(batch.rewards_B))
    for members in members_of(batch.groups_B):
        order = np.flatnonzero(members)[np.argsort(batch.rewards_B[members], kind="stable")]
        if len(order) > 1:
            advantages[order[-1]] = float(batch.rewards_B[order[-1]]) - float(batch.rewards_B[order[-2]])
    return by_group_std(advantages, batch) if settings.norm_by_std else advantages
