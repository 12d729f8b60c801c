"""Weights for tokens that another distribution has sampled than the one that is trained: the generator's arithmetic, or older weights.

With r = p(trainer, before the update) / p(generator), of a token or of the whole response:
- truncated: min(r, max). Yao et al., 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", equation 5.
- masked: r where r <= max, else 0. Liu et al., 2025, "When Speed Kills Stability: Demystifying RL Collapse from the
  Training-Inference Mismatch".
- icepop: r where min <= r <= max, else 0. Ling team, 2025, "Every Step Evolves: Scaling Reinforcement Learning for Trillion-Scale Thinking
  Model" (arXiv 2510.18855), equation 2.

The weight multiplies the token's advantage: every policy loss here is linear in it.
"""

from collections.abc import Sequence

import numpy as np

from tandem.config.schema import CorrectionConfig

MAX_LOG_RATIO = 20.0  # exp(20) = 5e8: beyond any bound, and finite


def correction_weights(old: Sequence[np.ndarray], rollout: Sequence[np.ndarray], settings: CorrectionConfig) -> list[np.ndarray]:
    """One weight for each response token of each sample, [R] float32; all 1 when `settings.kind` is none.

    Args:
        old, rollout: log-probs [R] of each sample's tokens by the trainer before the update and by the generator.
    """
    return [_weights(np.asarray(a, np.float64) - b, settings).astype(np.float32) for a, b in zip(old, rollout)]


def _weights(log_ratio_R: np.ndarray, settings: CorrectionConfig) -> np.ndarray:
    if settings.kind == "none":
        return np.ones_like(log_ratio_R)
    if settings.level == "sequence":
        log_ratio_R = np.full_like(log_ratio_R, log_ratio_R.sum())
    ratio = np.exp(np.minimum(log_ratio_R, MAX_LOG_RATIO))
    if settings.kind == "truncated":
        return np.minimum(ratio, settings.max)
    low = settings.min if settings.kind == "icepop" else 0.0
    return np.where((ratio >= low) & (ratio <= settings.max), ratio, 0.0)


def effective_share(weights: np.ndarray) -> float:
    """Kish's effective sample size of the weights as a share of their number: (sum w)^2 / (n sum w^2); 0 when all are 0."""
    squares = float((weights**2).sum())
    return float(weights.sum()) ** 2 / (len(weights) * squares) if squares else 0.0
