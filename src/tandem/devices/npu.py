"""Ascend NPU: HCCL between ranks, MindSpeed's adaptor imported before Megatron-Core."""

import importlib.util
from datetime import timedelta
from typing import Any

from tandem.config.schema import ParallelConfig

NAME = "npu"
COLLECTIVE_BACKEND = "hccl"
RAY_RESOURCE = "NPU"
VISIBLE_DEVICES_VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"
# MindSpeed puts its modules in the place of Transformer Engine's; FLA has kernels for triton-ascend.
FUSED_LAYERS, FUSED_DELTA_RULE = "mindspeed", "fla"


def missing() -> str:
    """Why this device cannot be used here; empty when it can."""
    if importlib.util.find_spec("torch_npu") is None:
        return "the package torch_npu is not installed"
    try:
        import torch_npu
    except (ImportError, OSError) as error:  # torch_npu without CANN fails while its libraries load
        return f"torch_npu is installed but does not import, usually because CANN is missing or not sourced: {error}"
    return "" if torch_npu.npu.is_available() else "torch_npu is installed but sees no NPU"


# What a user may overrule by exporting another value.
DEFAULT_ENVIRONMENT = {
    "COMBINED_ENABLE": "1",
    "CPU_AFFINITY_CONF": "1",
    "HCCL_BUFFSIZE": "300",
    "HCCL_CONNECT_TIMEOUT": "5400",  # HCCL's own 120 s are short for ranks that load weights at different speeds
    "PYTORCH_NPU_ALLOC_CONF": "garbage_collection_threshold:0.8",
    "RAY_DEDUP_LOGS": "0",
    "TASK_QUEUE_ENABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_ASCEND_ENABLE_NZ": "0",
}


def environment(num_threads: int) -> dict[str, str]:
    """Variables that every process of a run must have, set before torch is imported there."""
    # Visible devices are set by us, from what Ray gave to the actor; Ray setting them too would number the numbers.
    return {"OMP_NUM_THREADS": str(num_threads), "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES": "1"}


def prepare_megatron(parallel: ParallelConfig) -> None:
    """What must happen in a training process before `megatron.core` is imported: MindSpeed's adaptor patches it as it is imported.

    The adaptor chooses its patches from command-line arguments, which a Ray actor has none of; `repatch` takes them from here.
    """
    from mindspeed.megatron_adaptor import repatch

    repatch(megatron_arguments(parallel))


def megatron_arguments(parallel: ParallelConfig) -> dict[str, Any]:
    """Megatron-LM's names of what MindSpeed chooses its patches by."""
    return {
        "tensor_model_parallel_size": parallel.tp,
        "pipeline_model_parallel_size": parallel.pp,
        "virtual_pipeline_model_parallel_size": parallel.vpp or None,
        "context_parallel_size": parallel.cp,
        "expert_model_parallel_size": parallel.ep,
        "expert_tensor_parallel_size": parallel.etp,
        "sequence_parallel": parallel.tp > 1 if parallel.sp is None else parallel.sp,
        "use_flash_attn": True,
        "moe_token_dispatcher_type": "alltoall",
        "transformer_impl": "transformer_engine",
    }


def set_device(local_rank: int) -> None:
    """Bind this process to one device."""
    import torch_npu

    torch_npu.npu.set_device(local_rank)


def current() -> str:
    """The torch device of this process."""
    import torch_npu

    return f"npu:{torch_npu.npu.current_device()}"


def empty_cache() -> None:
    """Give cached memory back to the device."""
    import torch_npu

    torch_npu.npu.empty_cache()


def synchronize() -> None:
    """Wait until the device has done what it was asked."""
    import torch_npu

    torch_npu.npu.synchronize()


def process_group(store, rank: int, size: int, timeout: timedelta):
    """A backend of torch.distributed that knows nothing of the default group. Collective."""
    from torch_npu._C._distributed_c10d import ProcessGroupHCCL

    options = ProcessGroupHCCL.Options()
    options._timeout = timeout
    return ProcessGroupHCCL(store, rank, size, options)


def profiler() -> Any:
    """torch_npu's profiler, not started yet: `start`, `stop`, `export_chrome_trace(path)`."""
    import torch_npu

    activities = torch_npu.profiler.ProfilerActivity
    return torch_npu.profiler.profile(activities=[activities.CPU, activities.NPU], record_shapes=True)


def memory_peak_bytes() -> int:
    """Peak device memory of this process in bytes."""
    import torch_npu

    return torch_npu.npu.max_memory_allocated()


def peak_flops(dtype: str) -> float | None:
    """Not known: what is published of the 910B's and 910C's variants does not agree, and torch_npu tells no clock."""
    return None


def memory_bytes() -> int:
    """Memory of a device in bytes."""
    import torch_npu

    return torch_npu.npu.get_device_properties(0).total_memory
