"""What an advantage estimator reads."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class AdvantageBatch:
    """The samples of a step. B: samples."""

    rewards_B: np.ndarray  # float
    groups_B: np.ndarray  # int, which prompt
    lengths_B: np.ndarray  # int, response tokens
    greedy_rewards_B: np.ndarray | None = None  # of the greedy response to the same prompt; for the estimators in GREEDY_ADVANTAGES
    token_rewards: list[np.ndarray] | None = None  # of each sample's tokens, [R]; with `values`, where a critic gives them
    values: list[np.ndarray] | None = None  # of the state in which each token was chosen, [R]
