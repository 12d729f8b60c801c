"""The gradient of every single parameter, layout against layout: a norm over all of them would hide a small one that is wrong."""

from collections.abc import Iterator

import numpy as np
import pytest

from tandem.config.schema import ParallelConfig
from tandem.engine.fork_ranks import fork_each
from tests.examples import make_sequences, write_tiny_model

LAYOUTS = {  # model, ranks, sizes
    "dense tp2 without sp": ("dense", 2, {"tp": 2, "sp": False}),
    "dense tp2 cp2 without sp": ("dense", 4, {"tp": 2, "cp": 2, "sp": False}),
    "dense tp2": ("dense", 2, {"tp": 2}),
    "tp2": ("moe", 2, {"tp": 2}),
    "tp2 ep2": ("moe", 2, {"tp": 2, "ep": 2}),
    "pp2": ("moe", 2, {"pp": 2}),
    "cp2": ("moe", 2, {"cp": 2}),
    "tp2 vision cut": ("moe", 2, {"tp": 2, "vision_tp": True}),
}
NOISE = 2e-8  # of fp32, where a sum over all tokens all but cancels (decay rates of the first layers)

pytestmark = pytest.mark.parallel


@pytest.fixture(scope="module")
def gradients(tiny_model, tmp_path_factory) -> dict[str, dict[str, np.ndarray]]:
    """By layout and Hugging Face name; the models' names stand for one process."""
    models = {"moe": tiny_model, "dense": write_tiny_model(tmp_path_factory.mktemp("dense") / "model", "test-dense")}
    cases = {model: (model, 1, {}) for model in models} | LAYOUTS
    sequences = {name: make_sequences(model)[1:4] for name, model in models.items()}
    calls = [
        (
            "tests.engine.ranks:gradients",
            ParallelConfig(**sizes),
            world_size,
            {"model_path": str(models[model]), "sequences": sequences[model]},
        )
        for model, world_size, sizes in cases.values()
    ]
    return {name: dict(_all_of(shares)) for name, shares in zip(cases, fork_each(calls))}


def _all_of(shares: list[dict[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
    for share in shares:
        yield from share.items()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_parameter_s_gradient_is_a_rank_s_part_of_it(layout, gradients):
    ours, right = gradients[layout], gradients[LAYOUTS[layout][0]]
    assert ours.keys() == right.keys() and len(right) > 50
    for name, g in right.items():
        assert np.abs(g).max() > 50 * NOISE or ".experts." in name, f"{name} has so small a gradient that nothing is compared"
        np.testing.assert_allclose(ours[name], g, rtol=0, atol=1e-4 * np.abs(g).max() + NOISE, err_msg=name)
