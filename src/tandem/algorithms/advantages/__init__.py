"""How good each sample was, compared with what was to be expected: one estimator a file, pure functions on NumPy arrays.

B: samples of the step. To add one: a file with `name(batch, settings) -> [B]`, and its line in ADVANTAGES.
"""

from collections.abc import Callable

import numpy as np

from tandem.algorithms.advantages.dr_grpo import dr_grpo
from tandem.algorithms.advantages.grpo import grpo
from tandem.algorithms.advantages.grpo_passk import grpo_passk
from tandem.algorithms.advantages.opo import opo
from tandem.algorithms.advantages.reinforce_plus_plus import reinforce_plus_plus, reinforce_plus_plus_baseline
from tandem.algorithms.advantages.remax import remax
from tandem.algorithms.advantages.rloo import rloo
from tandem.algorithms.advantages.types import AdvantageBatch
from tandem.algorithms.registry import find
from tandem.config.schema import AlgorithmConfig

__all__ = ["ADVANTAGES", "GREEDY_ADVANTAGES", "Advantage", "AdvantageBatch", "get"]

Advantage = Callable[[AdvantageBatch, AlgorithmConfig], np.ndarray]  # -> advantages [B] float64

ADVANTAGES: dict[str, Advantage] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "opo": opo,
    "grpo_passk": grpo_passk,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "remax": remax,
}
GREEDY_ADVANTAGES = ("remax",)  # the rollout makes a greedy response to each prompt for these


def get(name: str) -> Advantage:
    """Raises UserError for an unknown name."""
    return find("advantage estimator", "algorithm.advantage", ADVANTAGES, name)
