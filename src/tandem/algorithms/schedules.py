"""The learning rate of a step."""

import math

from tandem.config.schema import OptimizerConfig


def lr_at(settings: OptimizerConfig, step: int, total_steps: int) -> float:
    """Linear warm-up over `warmup_steps`, then constant; or a half cosine; or WSD, constant and then a straight line.

    Both fall to `min_lr_share` of the rate, which a step after the last one would have. WSD: Hu et al., "MiniCPM", 2024 (arXiv 2404.06395).

    Args:
        step: from 1.
    """
    if step <= settings.warmup_steps:
        return settings.lr * step / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.lr
    begin = settings.warmup_steps
    if settings.schedule == "wsd":
        begin = max(begin, total_steps - round(settings.decay_share * total_steps))
    progress = min(1.0, max(0, step - 1 - begin) / max(1, total_steps - begin))
    shape = 1 - progress if settings.schedule == "wsd" else 0.5 * (1 + math.cos(math.pi * progress))
    return settings.lr * (settings.min_lr_share + (1 - settings.min_lr_share) * shape)
