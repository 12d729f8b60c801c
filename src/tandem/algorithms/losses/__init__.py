"""Policy losses: one a file, pure functions on tensors.

To add one: a file with `name(batch, settings) -> LossOutput`, and its line in LOSSES in `tandem/algorithms/names.py`.
"""

from collections.abc import Callable

from tandem.algorithms import names
from tandem.algorithms.losses.types import LossBatch, LossOutput
from tandem.algorithms.names import LOSSES
from tandem.config.schema import AlgorithmConfig

__all__ = ["LOSSES", "LossBatch", "LossOutput", "PolicyLoss", "get"]

PolicyLoss = Callable[[LossBatch, AlgorithmConfig], LossOutput]


def get(name: str) -> PolicyLoss:
    """Raises UserError for an unknown name."""
    loss: PolicyLoss = names.get("losses", name)
    return loss
