"""Statistics within groups, and over all tokens of the batch."""

from collections.abc import Iterator

import numpy as np


def members_of(groups_B: np.ndarray) -> Iterator[np.ndarray]:
    """[B] bool for each group: which samples are its members."""
    for group in np.unique(groups_B):
        yield groups_B == group


def centred(rewards_B: np.ndarray, groups_B: np.ndarray) -> np.ndarray:
    """Rewards minus their group's mean, float64; exactly 0 throughout a group whose rewards are all equal.

    A mean of equal numbers may differ from them in the last bit, and a division by a tiny standard deviation would make that an advantage.
    """
    return above(rewards_B, groups_B, np.ones(len(rewards_B)))


def above(rewards_B: np.ndarray, groups_B: np.ndarray, weights_B: np.ndarray) -> np.ndarray:
    """Rewards minus their group's mean weighted by `weights_B`, float64; exactly 0 throughout a group whose rewards are all equal."""
    rewards_B = rewards_B.astype(np.float64)
    out = np.zeros_like(rewards_B)
    for members in members_of(groups_B):
        values, weights = rewards_B[members], weights_B[members]
        if (values != values[0]).any():
            out[members] = values - (values * weights).sum() / weights.sum()
    return out


def token_mean_and_std(values_B: np.ndarray, lengths_B: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation (no Bessel) over all response tokens, each with its sample's value; (0, 0) without tokens.

    The deviation of equal values is exactly 0, and their mean is they.
    """
    values_B, num_tokens = values_B.astype(np.float64), int(lengths_B.sum())
    if not num_tokens:
        return 0.0, 0.0
    origin = float(values_B[np.argmax(lengths_B > 0)])  # sums of differences: exact where all are equal
    offset = float(((values_B - origin) * lengths_B).sum()) / num_tokens
    mean = origin + offset
    return mean, float(np.sqrt((lengths_B * (values_B - mean) ** 2).sum() / num_tokens))
