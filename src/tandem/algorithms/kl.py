"""Estimators of KL(policy || reference) at one sampled token, and a coefficient that keeps it near a target.

Schulman, "Approximating KL Divergence", 2020. Ziegler et al., "Fine-Tuning Language Models from Human Preferences", 2019
(arXiv 1909.08593).
"""

import math
from typing import Literal

from torch import Tensor

from tandem.config.schema import KLConfig

Kind = Literal["k1", "abs", "k2", "k3"]
MAX_ERROR = 0.2  # Ziegler et al.: the share of the target by which one step's error counts at most
MAX_EXPONENT = 10.0  # k3 is continued by its tangent from here on: finite, and still pushing the right way


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, kind: Kind) -> Tensor:
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


def adapted(coef: float, kl: float, num_samples: int, settings: KLConfig) -> float:
    """The next step's coefficient: coef * (1 + clip(kl / target - 1, -0.2, 0.2) * num_samples / horizon), Ziegler et al., section 2.2.

    Without a target `coef` itself, as after a step without a figure (NaN).

    Args:
        kl: this step's mean over response tokens.
        num_samples: of this step.
    """
    if settings.target == 0 or not math.isfinite(kl):
        return coef
    error = min(MAX_ERROR, max(-MAX_ERROR, kl / settings.target - 1))
    return coef * (1 + error * num_samples / settings.horizon)
