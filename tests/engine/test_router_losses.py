"""The router losses of Megatron-Core reach the routers when they are on, by their coefficients."""

import numpy as np
import pytest

from tandem.config.schema import ParallelConfig
from tandem.engine.fork_ranks import fork_each

CASES = {
    "off": {},
    "aux": {"router_aux_loss_coef": 0.5},
    "z": {"router_z_loss_coef": 0.1},
    "both": {"router_aux_loss_coef": 1.0, "router_z_loss_coef": 0.1},
}


@pytest.fixture(scope="module")
def gradients(tiny_model, sequences) -> dict[str, dict[str, np.ndarray]]:
    """case -> Hugging Face name -> gradient; one micro-batch, so that every case routes the same tokens."""
    calls = [
        (
            "tests.engine.ranks:gradients",
            ParallelConfig(),
            1,
            {
                "model_path": str(tiny_model),
                "sequences": sequences[:2],
                "model": {"dtype": "float32", **model},
                "batch": {"max_tokens_per_device": 4096},
            },
        )
        for model in CASES.values()
    ]
    return dict(zip(CASES, (share for [share] in fork_each(calls))))


def routers(gradients: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([gradient.ravel() for name, gradient in gradients.items() if name.endswith("mlp.gate.weight")])


@pytest.mark.parametrize("case", ["aux", "z"])
def test_a_loss_reaches_the_routers_and_not_the_output_layer(case, gradients):
    off, on = gradients["off"], gradients[case]
    assert np.abs(routers(on) - routers(off)).max() > 1e-2 * np.abs(routers(off)).max()
    assert np.array_equal(on["lm_head.weight"], off["lm_head.weight"]), "it is a loss on routing, not on tokens"


def test_they_grow_with_their_coefficients_and_add_up(gradients):
    base = routers(gradients["off"])
    aux, z, both = (routers(gradients[case]) - base for case in ("aux", "z", "both"))
    assert np.abs(both - (2 * aux + z)).max() <= 1e-3 * np.abs(both).max()
