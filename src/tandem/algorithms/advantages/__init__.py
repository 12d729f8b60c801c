"""How good each sample was, compared with what was to be expected: one estimator a file, pure functions on NumPy arrays.

B: samples of the step. To add one: a file with `name(rewards_B, groups_B, settings) -> [B]`, and its line in ADVANTAGES.
"""

from collections.abc import Callable

import numpy as np

from tandem.algorithms.advantages.dr_grpo import dr_grpo
from tandem.algorithms.advantages.grpo import grpo
from tandem.algorithms.advantages.rloo import rloo
from tandem.algorithms.registry import find
from tandem.config.schema import AlgorithmConfig

# (rewards [B] float, group of each sample [B] int, settings) -> advantages [B] float64
Advantage = Callable[[np.ndarray, np.ndarray, AlgorithmConfig], np.ndarray]

ADVANTAGES: dict[str, Advantage] = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}


def get(name: str) -> Advantage:
    """Raises UserError for an unknown name."""
    return find("advantage estimator", "algorithm.advantage", ADVANTAGES, name)
