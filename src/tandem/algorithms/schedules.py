"""The learning rate of a step."""

import math

from tandem.config.schema import OptimizerConfig


def lr_at(settings: OptimizerConfig, step: int, total_steps: int) -> float:
    """Linear warm-up over `warmup_steps`, then constant, or a half cosine down to 0 after the last step.

    Args:
        step: from 1.
    """
    if step <= settings.warmup_steps:
        return settings.lr * step / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.lr
    progress = (step - 1 - settings.warmup_steps) / max(1, total_steps - settings.warmup_steps)
    return settings.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
