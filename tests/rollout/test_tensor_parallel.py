"""Two tensor-parallel workers in processes of their own: same log-probs, same refusals, and no process survives its engine."""

import os
import signal

import psutil
import pytest
from safetensors.torch import load_file

from tandem.config.schema import RolloutConfig
from tandem.errors import RunError
from tandem.rollout.types import Request, SamplingParams
from tests.rollout.reference import Reference, assert_same_logprobs
from tests.rollout.remote import RemoteEngine


def test_two_workers_generate_update_refuse_and_end_with_their_engine(models, banned, stops, prompts):
    rollout = RolloutConfig(tp=2, max_num_seqs=32, cache_bytes=32 << 20, enforce_eager=True)
    engine = RemoteEngine(
        rollout, model_path=str(models.a), dtype="float32", max_model_len=256, seed=0, banned_token_ids=banned, stop_token_ids=stops
    )
    requests = [Request(prompt, SamplingParams(num_samples=2, max_tokens=16, seed=7)) for prompt in prompts]
    assert_same_logprobs(Reference(models.a, banned), prompts, engine.generate(requests, 0), 1.0)
    processes = [engine.process, *psutil.Process(engine.process.pid).children(recursive=True)]
    assert len(processes) >= 3

    tensors = load_file(models.b / "model.safetensors")
    lost = "model.language_model.layers.3.self_attn.k_proj.weight"
    with pytest.raises(RunError, match=r"1 missing: .*k_proj"):
        engine.publish({name: tensor for name, tensor in tensors.items() if name != lost}, expected_names=list(tensors))
    with pytest.raises(RunError, match="no complete version"):
        engine.generate(requests, 0)
    engine.publish(tensors)
    assert_same_logprobs(Reference(models.b, banned), prompts, engine.generate(requests, engine.version), 1.0)

    os.kill(engine.process.pid, signal.SIGKILL)  # as the machine's memory killer would
    engine.process.join(10)
    _, alive = psutil.wait_procs(processes[1:], timeout=20)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == [], "a worker outlived its engine"
