"""Policy losses: one a file, pure functions on tensors.

To add one: a file with `name(batch, settings) -> LossOutput`, and its line in LOSSES.
"""

from collections.abc import Callable

from tandem.algorithms.losses.cispo import cispo
from tandem.algorithms.losses.gmpo import gmpo
from tandem.algorithms.losses.gspo import gspo, gspo_token
from tandem.algorithms.losses.ppo_clip import ppo_clip
from tandem.algorithms.losses.sapo import sapo
from tandem.algorithms.losses.types import LossBatch, LossOutput
from tandem.algorithms.registry import find
from tandem.config.schema import AlgorithmConfig

__all__ = ["LOSSES", "LossBatch", "LossOutput", "PolicyLoss", "get"]

PolicyLoss = Callable[[LossBatch, AlgorithmConfig], LossOutput]

LOSSES: dict[str, PolicyLoss] = {
    "ppo_clip": ppo_clip,
    "gspo": gspo,
    "gspo_token": gspo_token,
    "cispo": cispo,
    "sapo": sapo,
    "gmpo": gmpo,
}


def get(name: str) -> PolicyLoss:
    """Raises UserError for an unknown name."""
    return find("policy loss", "algorithm.loss", LOSSES, name)
