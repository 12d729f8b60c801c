"""How good each sample was, compared with what was to be expected: one estimator a file, pure functions on NumPy arrays.

B: samples of the step. To add one: a file with `name(batch, settings) -> [B]`, and its line in ADVANTAGES in `tandem/algorithms/names.py`.
An estimator may also return a list of arrays, one advantage for each token of each sample, as `gae` does.
"""

from collections.abc import Callable

import numpy as np

from tandem.algorithms import names
from tandem.algorithms.advantages.types import AdvantageBatch
from tandem.algorithms.names import ADVANTAGES
from tandem.config.schema import AlgorithmConfig

__all__ = ["ADVANTAGES", "GREEDY_ADVANTAGES", "Advantage", "AdvantageBatch", "get"]

Advantage = Callable[[AdvantageBatch, AlgorithmConfig], np.ndarray | list[np.ndarray]]  # -> advantages [B] float64, or [R] of each sample

GREEDY_ADVANTAGES = ("remax",)  # the rollout makes a greedy response to each prompt for these


def get(name: str) -> Advantage:
    """Raises UserError for an unknown name."""
    advantage: Advantage = names.get("advantages", name)
    return advantage
