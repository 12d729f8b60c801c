"""SAPO: Gao et al., "Soft Adaptive Policy Optimization", 2025 (arXiv 2511.20347), equations 5 and 6."""

import torch

from tandem.algorithms.losses.ratios import log_ratios
from tandem.algorithms.losses.types import LossBatch, LossOutput
from tandem.config.schema import AlgorithmConfig


def sapo(batch: LossBatch, settings: AlgorithmConfig) -> LossOutput:
    """-(4 / tau) * sigmoid(tau * (ratio - 1)) * A, tau = tau_positive where A > 0, else tau_negative: a gate instead of a clip.

    At ratio 1 the gradient is -A, as without a gate. No token counts as clipped.
    """
    ratio, advantages = log_ratios(batch).exp(), batch.advantages_R
    tau = torch.where(advantages > 0, settings.tau_positive, settings.tau_negative)
    loss = -4 / tau * torch.sigmoid(tau * (ratio - 1)) * advantages
    return LossOutput(loss, torch.zeros_like(loss, dtype=torch.bool))
