"""Every advantage estimator and policy loss by name, and where it is: `module:function`. To add one, write its file and its line here.

Importing this loads neither torch nor NumPy: a misspelt name is told by `--dry-run`, too.
"""

from importlib import import_module
from typing import Any

from tandem.algorithms.registry import find
from tandem.config.schema import AlgorithmConfig

ADVANTAGES = {
    "grpo": "grpo:grpo",
    "dr_grpo": "dr_grpo:dr_grpo",
    "rloo": "rloo:rloo",
    "opo": "opo:opo",
    "grpo_passk": "grpo_passk:grpo_passk",
    "reinforce_plus_plus": "reinforce_plus_plus:reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus:reinforce_plus_plus_baseline",
    "remax": "remax:remax",
    "gae": "gae:gae",
    "ppo": "gae:gae",  # by the name of the algorithm
}
LOSSES = {
    "ppo_clip": "ppo_clip:ppo_clip",
    "gspo": "gspo:gspo",
    "gspo_token": "gspo:gspo_token",
    "cispo": "cispo:cispo",
    "sapo": "sapo:sapo",
    "gmpo": "gmpo:gmpo",
}


def check_names(settings: AlgorithmConfig) -> None:
    """Raises UserError for an unknown name; suggests the nearest."""
    _place_of("advantages", settings.advantage)
    _place_of("losses", settings.loss)


def get(room: str, name: str) -> Any:
    """The function of that name in `advantages` or `losses`. Raises UserError for an unknown name."""
    module, _, function = _place_of(room, name).partition(":")
    return getattr(import_module(f"tandem.algorithms.{room}.{module}"), function)


def _place_of(room: str, name: str) -> str:
    if room == "losses":
        return find("policy loss", "algorithm.loss", LOSSES, name)
    return find("advantage estimator", "algorithm.advantage", ADVANTAGES, name)
