"""What must be right before a vLLM starts."""

import subprocess
import sys

import pytest

from tandem.config.schema import RolloutConfig
from tandem.errors import UserError
from tandem.rollout.engine import RolloutEngine, engine_arguments, engine_environment
from tests.rollout.remote import RemoteEngine


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_environment_can_be_set_before_vllm_is_imported():
    heavy = run_python("import sys, tandem.rollout.engine; print([m for m in ('vllm', 'torch', 'transformers') if m in sys.modules])")
    assert heavy.strip() == "[]"
    environment = engine_environment(RolloutConfig(num_threads=3), "cpu")
    assert environment["OMP_NUM_THREADS"] == "3" and environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in engine_environment(RolloutConfig(), "gpu")
    assert all(isinstance(value, str) for value in environment.values())


def test_the_terminal_s_process_loads_nothing_heavy_and_shows_none_of_its_warnings():
    heavy = run_python("import sys, tandem.run.launch; print([m for m in ('vllm', 'torch', 'megatron', 'ray') if m in sys.modules])")
    assert heavy.strip() == "[]"


def test_memory_share_is_used_unless_the_cache_has_a_size():
    assert "kv_cache_memory_bytes" not in engine_arguments("m", RolloutConfig(), "bfloat16", 64, 0, "cpu")
    arguments = engine_arguments("m", RolloutConfig(cache_bytes=1 << 20, memory_share=0.3, tp=2), "bfloat16", 64, 0, "cpu")
    assert arguments["kv_cache_memory_bytes"] == 1 << 20 and arguments["gpu_memory_utilization"] == 0.3
    assert arguments["tensor_parallel_size"] == 2 and arguments["distributed_executor_backend"] == "mp"


def test_folder_without_a_model_is_refused_at_once(tmp_path):
    with pytest.raises(UserError, match=r"config\.json"):
        RolloutEngine(
            tmp_path,
            RolloutConfig(),
            dtype="float32",
            max_model_len=64,
            seed=0,
            banned_token_ids=[],
            stop_token_ids=[],
            device="cpu",
        )


def test_cache_too_small_for_one_sequence_is_the_users_fault(models):
    rollout = RolloutConfig(max_num_seqs=2, cache_bytes=1 << 16, enforce_eager=True)
    engine = RemoteEngine(
        rollout, model_path=str(models.a), dtype="float32", max_model_len=256, seed=0, banned_token_ids=[], stop_token_ids=[]
    )
    try:
        with pytest.raises(UserError, match="refuses to start"):
            engine.check_version(0)
    finally:
        engine.process.kill()
        engine.process.join()


def test_patch_refuses_a_function_that_it_was_not_written_for():
    code = """
from tandem.errors import UserError
from tandem.rollout import vllm_cpu
for function, digest in vllm_cpu.EXPECTED_SOURCES.items():
    vllm_cpu.check_source(function, digest)
try:
    vllm_cpu.check_source(vllm_cpu.GPUModelRunner.sample_tokens, "0123456789abcdef")
except UserError as error:
    print(error.what)
"""
    assert "sample_tokens of vLLM 0.32.0 is not the function that Tandem patches" in run_python(code)
