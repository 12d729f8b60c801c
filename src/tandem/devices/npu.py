"""Ascend NPU: HCCL between ranks, MindSpeed's adaptor imported before Megatron-Core."""

import importlib.util

NAME = "npu"
COLLECTIVE_BACKEND = "hccl"
RAY_RESOURCE = "NPU"
VISIBLE_DEVICES_VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"
PEAK_FLOPS: float | None = None  # depends on the model of the card
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


def environment(num_threads: int) -> dict[str, str]:
    """Variables of every training process, set before torch is imported there."""
    return {
        "OMP_NUM_THREADS": str(num_threads),
        "CPU_AFFINITY_CONF": "1",
        "PYTORCH_NPU_ALLOC_CONF": "garbage_collection_threshold:0.8",
        "HCCL_CONNECT_TIMEOUT": "5400",
        "HCCL_BUFFSIZE": "300",
        "TASK_QUEUE_ENABLE": "1",
        "COMBINED_ENABLE": "1",
        "VLLM_ASCEND_ENABLE_NZ": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def prepare_megatron() -> None:
    """What must happen in a training process before `megatron.core` is imported."""
    import mindspeed.megatron_adaptor  # noqa: F401  (patches Megatron-Core on import)


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


def memory_peak_bytes() -> int:
    """Peak device memory of this process in bytes."""
    import torch_npu

    return torch_npu.npu.max_memory_allocated()


def memory_bytes() -> int:
    """Memory of a device in bytes."""
    import torch_npu

    return torch_npu.npu.get_device_properties(0).total_memory
