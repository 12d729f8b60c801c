"""The guide's two recipes as settings, on both accelerators."""

from typing import Any

from tandem.config.schema import Config

GIB = 1 << 30
_35B: dict[str, Any] = {
    "model": {"path": "Qwen/Qwen3.5-35B-A3B"},
    "data": {"train_batch_size": 32, "max_prompt_length": 1024, "max_response_length": 2048},
    "batch": {"micro_batch_size": 1, "mini_batch_size": 32},
    "algorithm": {"kl": {"coef": 0.01}},
}
_122B: dict[str, Any] = {
    "model": {"path": "Qwen/Qwen3.5-122B-A10B"},
    "data": {"train_batch_size": 128, "max_prompt_length": 3240, "max_response_length": 4096, "truncation": "right"},
    "batch": {"micro_batch_size": 1, "mini_batch_size": 64},
}
_TRAINER = {"recompute": "full", "offload": True}
RECIPES: dict[str, dict[str, Any]] = {
    "35b_npu": _35B
    | {
        "device": "npu",
        "parallel": {"tp": 2, "pp": 2, "ep": 8},
        "trainer": {"nnodes": 1, "devices_per_node": 16} | _TRAINER,
        "rollout": {"n": 5, "tp": 8, "replicas": 2, "memory_share": 0.6},
    },
    "35b_gpu": _35B
    | {
        "device": "gpu",
        "parallel": {"tp": 2, "ep": 8},
        "trainer": {"nnodes": 1, "devices_per_node": 8} | _TRAINER,
        "rollout": {"n": 5, "tp": 8, "replicas": 1, "memory_share": 0.6},
    },
    "122b_npu": _122B
    | {
        "device": "npu",
        "parallel": {"tp": 2, "pp": 4, "ep": 16},
        "trainer": {"nnodes": 4, "devices_per_node": 16} | _TRAINER,
        "rollout": {"n": 6, "tp": 16, "replicas": 4, "memory_share": 0.6, "max_model_len": 8192},
    },
    "122b_gpu": _122B
    | {
        "device": "gpu",
        "parallel": {"tp": 2, "pp": 2, "ep": 8},
        "trainer": {"nnodes": 4, "devices_per_node": 8} | _TRAINER,
        "rollout": {"n": 6, "tp": 8, "replicas": 4, "memory_share": 0.66, "max_model_len": 15768},
    },
}


def recipe(name: str, **changes: dict[str, Any]) -> Config:
    """Args: changes: of sections."""
    settings = dict(RECIPES[name])
    for section, values in changes.items():
        settings[section] = settings.get(section, {}) | values
    return Config.model_validate(settings)
