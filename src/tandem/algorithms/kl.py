"""Estimators of KL(policy || reference) at one sampled token: Schulman 2020, "Approximating KL Divergence" (joschu.net/blog/kl-approx.html)."""

from typing import Literal

from torch import Tensor

MAX_LOG_RATIO = 20.0


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, kind: Literal["k1", "abs", "k2", "k3"]) -> Tensor:
    """Per token, any shape. With d = log p(policy) - log p(reference):

    k1 = d (unbiased, may be negative; its gradient's expectation is 0, so it is for measuring, or for the reward), abs = |d|, k2 = d^2 / 2,
    k3 = exp(-d) - 1 + d (unbiased, never negative, low variance). d is clamped to +-20 in k3, where the exponential would overflow.
    """
    d = logprobs - ref_logprobs
    if kind == "k1":
        return d
    if kind == "abs":
        return d.abs()
    if kind == "k2":
        return d * d / 2
    d = d.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (-d).expm1() + d
