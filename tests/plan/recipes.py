"""The two recipes on both accelerators, as `tandem` loads them."""

from typing import Any

from tandem.config.load import load
from tandem.config.schema import Config

GIB = 1 << 30
RECIPES = {
    f"{size}_{device}": (name, device)
    for size, name in (("35b", "qwen3_5_35b_a3b"), ("122b", "qwen3_5_122b_a10b"))
    for device in ("npu", "gpu")
}


def recipe(key: str, **changes: Any) -> Config:
    """Args: key: of RECIPES. changes: settings of sections, as `section={"name": value}`."""
    name, device = RECIPES[key]
    settings = load(name, [f"device={device}"], env={}).model_dump()
    for section, values in changes.items():
        settings[section] |= values
    return Config.model_validate(settings)
