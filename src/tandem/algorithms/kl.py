"""Estimators of KL(policy || reference) at one sampled token. Schulman, "Approximating KL Divergence", 2020."""

import math
from typing import Literal

from torch import Tensor

MAX_EXPONENT = 10.0  # k3 is continued by its tangent from here on: finite, and still pushing the right way


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, kind: Literal["k1", "abs", "k2", "k3"]) -> Tensor:
    """Per token, any shape. With d = log p(policy) - log p(reference):

    k1 = d                  unbiased, may be negative. As a loss its gradient's expectation is 0: for measuring, or for the reward.
    abs = |d|               biased; gradient +-1.
    k2 = d^2 / 2            biased; on fresh samples its gradient's expectation is that of the KL itself.
    k3 = exp(-d) - 1 + d    unbiased, never negative, low variance; gradient 1 - exp(-d): hardest where the reference is likelier.
    """
    d = logprobs - ref_logprobs
    if kind == "k1":
        return d
    if kind == "abs":
        return d.abs()
    if kind == "k2":
        return d * d / 2
    bounded = d.clamp(min=-MAX_EXPONENT)
    return (-bounded).expm1() + bounded + math.expm1(MAX_EXPONENT) * (bounded - d)
