"""A step that would spoil the weights is not taken."""

import math

import pytest

from tandem.config.schema import ParallelConfig
from tandem.engine.fork_ranks import fork_each

CASES = {  # dtype, settings of the optimizer
    "fp32": ("float32", {}),
    "bf16": ("bfloat16", {}),
    "fp32 without clipping": ("float32", {"clip_grad": 0.0}),
    "bf16 on the CPU": ("bfloat16", {"on_cpu": True}),
}

pytestmark = pytest.mark.parallel


@pytest.fixture(scope="module")
def shares(tiny_model, sequences) -> dict[str, list[dict]]:
    call = {"model_path": str(tiny_model), "sequences": sequences[:3]}
    calls = [
        ("tests.engine.ranks:step_on_infinite_gradients", ParallelConfig(ep=2), 2, call | settings)
        for dtype, optimizer in CASES.values()
        for settings in [{"model": {"dtype": dtype}, "optimizer": optimizer}]
    ]
    return dict(zip(CASES, fork_each(calls)))


@pytest.mark.parametrize("case", CASES)
def test_gradients_that_are_not_finite_leave_weights_and_moments_bit_for_bit_on_all_ranks(case, shares):
    for share in shares[case]:
        assert share["unchanged"], "the sequence with infinite weights is another rank's for half of the ranks"
        assert share["refused"]["update_ok"] == 0.0 and math.isnan(share["refused"]["grad_norm"])
        assert share["changed"] and share["taken"]["update_ok"] == 1.0 and share["taken"]["grad_norm"] > 0, "the next step is taken"
