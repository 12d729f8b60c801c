"""Layouts that tests and benchmarks run, and what is measured of each."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tandem.config.schema import ParallelConfig
from tandem.engine.fork_ranks import fork_ranks

NUM_STEPS, LR = 4, 2e-3

LAYOUTS: dict[str, tuple[int, dict[str, int]]] = {
    "single": (1, {}),
    "dp2": (2, {}),
    "tp2_etp1": (2, {"tp": 2}),
    "tp2_etp2": (2, {"tp": 2, "etp": 2}),
    "tp2_ep2": (2, {"tp": 2, "ep": 2}),
    "tp2_vision_cut": (2, {"tp": 2, "vision_tp": True}),
    "ep4": (4, {"ep": 4}),
    "pp2": (2, {"pp": 2}),
    "pp2_vpp2": (2, {"pp": 2, "vpp": 2}),
    "cp2": (2, {"cp": 2}),
    "tp2_pp2_ep2": (4, {"tp": 2, "pp": 2, "ep": 2}),
    "tp2_cp2_ep2": (4, {"tp": 2, "cp": 2, "ep": 2}),
    "pp2_cp2_ep2": (4, {"pp": 2, "cp": 2, "ep": 2}),
    "tp2_pp2_cp2_ep2": (8, {"tp": 2, "pp": 2, "cp": 2, "ep": 2}),
    "guide_35b": (16, {"tp": 2, "pp": 2, "ep": 8}),
}
GUIDE_122B = (64, {"tp": 2, "pp": 4, "ep": 16})


@dataclass(frozen=True)
class Measured:
    logprobs: list[np.ndarray]  # of each sequence, before the first step
    losses: np.ndarray  # [NUM_STEPS]
    grad_norms: np.ndarray  # [NUM_STEPS, ranks], before clipping


def measure(
    layout: tuple[int, dict[str, int]],
    model: Path,
    sequences: list,
    *,
    timeout_s: float = 300,
    function: str = "tests.engine.ranks:score_and_train",
    **sections,
) -> Measured:
    """Supervised steps of `model` under a layout and with other settings of `sections`, put together from all ranks."""
    world_size, sizes = layout
    call = {"model_path": str(model), "sequences": sequences, "num_steps": NUM_STEPS, "lr": LR, **sections}
    shares = fork_ranks(function, ParallelConfig(**sizes), world_size, timeout_s=timeout_s, **call)
    scored = {index: logprobs for share in shares for index, (logprobs, _) in share["before"].items()}
    assert sorted(scored) == list(range(len(sequences))), "a sequence was left out or scored twice"
    return Measured(
        [scored[index] for index in range(len(sequences))],
        np.array([sum(share["steps"][step].get("loss/policy", 0.0) for share in shares) for step in range(NUM_STEPS)]),
        np.array([[share["steps"][step]["grad_norm"] for share in shares] for step in range(NUM_STEPS)]),
    )
