"""The experts that the generator's tokens went to, as it tells them, against transformers' routers."""

import numpy as np
import pytest
import torch

from tandem.config.schema import RolloutConfig
from tandem.errors import RunError, UserError
from tandem.rollout.engine import check_returns_experts, chosen_experts, engine_arguments, engine_environment
from tandem.rollout.types import Request, SamplingParams
from tests.rollout.reference import NEAR_TIE, Reference
from tests.rollout.remote import RemoteEngine


@pytest.fixture(scope="module")
def sampled(models, prompts, banned, stops):
    """(prompt, its 3 samples) of each prompt, few at a time: some find their prompt's prefix in the cache. The second prompt's requests
    have the names of others, as long, that were given up before."""
    rollout = RolloutConfig(max_num_seqs=4, cache_bytes=64 << 20, enforce_eager=False, router_replay=True)
    arguments = {"model_path": str(models.a), "dtype": "float32", "max_model_len": 256, "seed": 0}
    engine = RemoteEngine(rollout, **arguments, banned_token_ids=banned, stop_token_ids=stops)
    order = [prompts[number] for number in (0, 3, 4, 1, 2, 5)]
    try:
        with pytest.raises(RuntimeError, match="given up"):
            engine.give_up([Request(order[0], SamplingParams(1, max_tokens=8)), Request(order[2], SamplingParams(3, max_tokens=16))], 0)
        completions = engine.generate([Request(prompt, SamplingParams(3, max_tokens=16, seed=4)) for prompt in order], 0)
    finally:
        engine.close()
    return list(zip(order, completions))


def test_they_are_the_experts_of_transformers(models, sampled, banned):
    torch.set_num_threads(1)
    reference, choices, num_compared = Reference(models.a, banned), [], 0
    for layer in reference.model.model.language_model.layers:
        layer.mlp.gate.register_forward_hook(lambda _module, _inputs, outputs: choices.append(outputs[2]))
    for prompt, samples in sampled:
        for sample in samples:
            choices.clear()
            reference.logprobs(prompt, sample.token_ids, 1.0)
            theirs = torch.stack(choices, 1).sort(-1).values.numpy()  # [T, layers, k]
            clear = torch.stack(reference.gaps, 1).numpy() > 10 * NEAR_TIE  # [T, layers]: rounding does not turn these over
            until = np.append(np.flatnonzero(~clear.all(1)), len(clear))[0]  # a turned choice changes all that follows
            ours = np.sort(sample.experts, -1)
            assert ours.shape == theirs.shape and (ours[-1] == -1).all() and (ours[:-1] >= 0).all()
            np.testing.assert_array_equal(ours[: min(until, len(ours) - 1)], theirs[: min(until, len(ours) - 1)])
            num_compared += min(until, len(ours) - 1)
    assert num_compared > 500


def test_an_engine_that_returns_none_or_too_few_stops_the_run():
    with pytest.raises(RunError, match="no experts for a sample of row r"):
        chosen_experts(None, 9, "r")
    with pytest.raises(RunError, match="the experts of 7 tokens for a sample of row r, which has 9 tokens"):
        chosen_experts(np.zeros((7, 2, 2), np.uint8), 9, "r")


@pytest.mark.parametrize("device", ["gpu", "npu", "cpu"])
def test_where_vllm_records_by_itself_it_is_asked_to(device):
    rollout = RolloutConfig(router_replay=True)
    asked = engine_arguments("m", rollout, "bfloat16", 64, 0, device).get("enable_return_routed_experts", False)
    assert asked == (device != "cpu")
    assert ("VLLM_USE_V2_MODEL_RUNNER" in engine_environment(rollout, device)) == (device == "gpu")


def test_a_build_of_vllm_that_cannot_return_experts_is_told_before_it_loads():
    """vLLM itself raises a TypeError about an unexpected keyword, which nobody would take for a missing feature."""
    arguments = engine_arguments("m", RolloutConfig(router_replay=True), "bfloat16", 64, 0, "gpu")
    check_returns_experts(arguments, arguments)
    with pytest.raises(UserError, match="does not return which experts it chose"):
        check_returns_experts(arguments, {"model"})
    check_returns_experts(engine_arguments("m", RolloutConfig(), "bfloat16", 64, 0, "gpu"), {"model"})
