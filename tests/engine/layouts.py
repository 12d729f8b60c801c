"""Layouts that tests and benchmarks run, and what is measured of each."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tandem.config.schema import ParallelConfig
from tandem.engine.fork_ranks import fork_each

NUM_STEPS, LR = 4, 2e-3

LAYOUTS: dict[str, tuple[int, dict[str, int]]] = {
    "single": (1, {}),
    "dp2": (2, {}),
    "tp2_etp1": (2, {"tp": 2}),
    "tp2_etp2": (2, {"tp": 2, "etp": 2}),
    "tp2_ep2": (2, {"tp": 2, "ep": 2}),
    "tp2_ep2_etp2": (4, {"tp": 2, "ep": 2, "etp": 2}),
    "ep2_etp2_over_dp": (4, {"ep": 2, "etp": 2}),  # an expert is cut among ranks that have different sequences
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


@dataclass(frozen=True)
class Case:
    """Supervised steps of a model under a layout; `settings`: other sections of the configuration."""

    layout: tuple[int, dict[str, int]]
    model: Path
    sequences: list
    settings: dict = field(default_factory=dict)
    function: str = "tests.engine.ranks:score_and_train"


def measure(cases: list[Case], *, timeout_s: float = 900) -> list[Measured]:
    """What all ranks of each case gave, put together; Python starts once."""
    steps = {"num_steps": NUM_STEPS, "lr": LR}
    calls = [
        (
            case.function,
            ParallelConfig(**sizes),
            world_size,
            {"model_path": str(case.model), "sequences": case.sequences, **steps, **case.settings},
        )
        for case in cases
        for world_size, sizes in [case.layout]
    ]
    return [_put_together(shares, len(case.sequences)) for case, shares in zip(cases, fork_each(calls, timeout_s=timeout_s))]


def _put_together(shares: list[dict], num_sequences: int) -> Measured:
    scored = {index: logprobs for share in shares for index, (logprobs, _) in share["before"].items()}
    assert sorted(scored) == list(range(num_sequences)), "a sequence was left out or scored twice"
    return Measured(
        [scored[index] for index in range(num_sequences)],
        np.array([sum(share["steps"][step].get("loss/policy", 0.0) for share in shares) for step in range(NUM_STEPS)]),
        np.array([[share["steps"][step]["grad_norm"] for share in shares] for step in range(NUM_STEPS)]),
    )
