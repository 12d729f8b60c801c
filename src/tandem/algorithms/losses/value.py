"""The critic's loss, as PPO's authors have it in OpenAI's baselines; the clip is detail 9 of Huang et al., "The 37 Implementation Details
of Proximal Policy Optimization", 2022."""

import torch
from torch import Tensor

from tandem.algorithms.losses.types import LossOutput


def value_loss(values_R: Tensor, old_values_R: Tensor, targets_R: Tensor, clip: float) -> LossOutput:
    """max((V - target)^2, (clip(V, V_old - clip, V_old + clip) - target)^2) / 2 of each token; a clip of 0 is off.

    `clipped_R` says whose gradient the clip has cut.
    """
    free = (values_R - targets_R) ** 2
    if clip == 0:
        return LossOutput(free / 2, torch.zeros_like(free, dtype=torch.bool))
    near = old_values_R + (values_R - old_values_R).clamp(-clip, clip)
    bounded = (near - targets_R) ** 2
    return LossOutput(torch.maximum(free, bounded) / 2, bounded > free)
