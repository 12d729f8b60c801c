"""With the optimizer on the CPU training is the same training, and what it keeps is in memory of its own."""

import numpy as np
import pytest
import torch

from tandem.config.schema import ParallelConfig
from tandem.engine.fork_ranks import fork_each
from tandem.engine.host_adam import HostAdamW

SETTINGS = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.1}


def test_a_step_is_adamws_and_bf16_weights_are_the_rounded_fp32_ones():
    """A step of 0.001 is lost in a bf16 weight of 1; twenty of them are there."""
    torch.manual_seed(0)
    weights, slow = torch.randn(100), torch.full((10,), 1.0)
    shards = [weights.bfloat16(), slow.bfloat16(), weights.clone()]
    expected = [torch.nn.Parameter(shard.to(torch.float32, copy=True)) for shard in shards]
    ours = HostAdamW([{"params": shards[:1]}, {"params": shards[1:], "weight_decay": 0.0}], **SETTINGS, offload_fraction=1.0)
    theirs = torch.optim.AdamW([{"params": expected[:1]}, {"params": expected[1:], "weight_decay": 0.0}], **SETTINGS)
    ours.start()
    for _ in range(20):
        for shard, parameter in zip(shards, expected):
            shard.decoupled_grad = torch.rand(len(shard)) + 0.5
            parameter.grad = shard.decoupled_grad.clone()
        ours.step()
        theirs.step()
    for shard, parameter in zip(shards, expected):
        state = ours.state[shard]
        torch.testing.assert_close(state["master_param"], parameter.data, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(state["exp_avg_sq"], theirs.state[parameter]["exp_avg_sq"], rtol=1e-5, atol=1e-7)
        assert torch.equal(shard, state["master_param"].to(shard.dtype))
        assert state["master_param"].data_ptr() != shard.data_ptr()
    assert shards[1].float().tolist() == pytest.approx([0.98] * 10, abs=0.004)


def test_a_parameter_without_a_gradient_stays():
    shard = torch.ones(3)
    optimizer = HostAdamW([shard], **SETTINGS)
    optimizer.start()
    optimizer.step()
    assert shard.tolist() == [1, 1, 1] and float(optimizer.state[shard]["step"]) == 0


def test_loaded_state_keeps_its_precision_and_its_place():
    shard, other = torch.ones(3).bfloat16(), torch.ones(2).bfloat16()
    optimizer = HostAdamW([shard, other], **SETTINGS)
    optimizer.start()
    place, step = optimizer.state[shard]["exp_avg"].data_ptr(), torch.tensor(7.0)
    state = {i: {"step": step, "exp_avg": torch.full((n,), 1.2345678), "exp_avg_sq": torch.ones(n)} for i, n in ((0, 3), (1, 2))}
    optimizer.load_state_dict({"state": state, "param_groups": [{"params": [0, 1], "lr": 0.5}]})
    assert torch.equal(optimizer.state[shard]["exp_avg"], torch.full((3,), 1.2345678)), "torch's own would round to bf16"
    assert optimizer.state[shard]["exp_avg"].data_ptr() == place
    assert optimizer.state[shard]["step"] is not optimizer.state[other]["step"], "AdamW counts in place"
    assert optimizer.param_groups[0]["lr"] == 0.5


@pytest.fixture(scope="module")
def trained(tiny_model, sequences) -> dict[tuple[str, bool], list[dict]]:
    """By dtype and place. Data-, tensor- and expert-parallel: state is sharded; everything else is offloaded between the updates."""
    cases = [(dtype, on_cpu) for dtype in ("float32", "bfloat16") for on_cpu in (False, True)]
    call = {"model_path": str(tiny_model), "sequences": sequences[:4]}
    call["trainer"] = {"offload": True}
    calls = [
        (
            "tests.engine.ranks:train_with_offload",
            ParallelConfig(tp=2, ep=2),
            4,
            call | {"model": {"dtype": dtype}, "optimizer": {"on_cpu": on_cpu, "eps": 1e-4}},
        )
        for dtype, on_cpu in cases
    ]
    return dict(zip(cases, fork_each(calls)))


@pytest.mark.parallel
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 2e-5)])
def test_losses_norms_weights_and_scores_are_those_of_the_optimizer_on_the_device(dtype, tolerance, trained):
    """To fp32 rounding; a bf16 weight may round to its neighbour."""
    for device, host in zip(trained[dtype, False], trained[dtype, True]):
        for ours, theirs in zip(host["metrics"], device["metrics"]):
            assert ours == pytest.approx(theirs, rel=tolerance, abs=tolerance)
        for index, (logprobs, _) in device["scores"].items():
            np.testing.assert_allclose(host["scores"][index][0], logprobs, atol=100 * tolerance)
        assert host["bytes_out"] == 0
        assert host["scores"].keys() == device["scores"].keys()
