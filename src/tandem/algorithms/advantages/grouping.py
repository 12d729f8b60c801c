"""Statistics within groups."""

import numpy as np


def centred(rewards_B: np.ndarray, groups_B: np.ndarray) -> np.ndarray:
    """Rewards minus their group's mean, float64; exactly 0 throughout a group whose rewards are all equal.

    A mean of equal numbers may differ from them in the last bit, and a division by a tiny standard deviation would make that an advantage.
    """
    rewards_B = rewards_B.astype(np.float64)
    out = np.empty_like(rewards_B)
    for group in np.unique(groups_B):
        members = groups_B == group
        values = rewards_B[members]
        out[members] = 0.0 if (values == values[0]).all() else values - values.mean()
    return out
