"""NVIDIA GPU: NCCL between ranks, Megatron-Core as it is."""

import ctypes
from datetime import timedelta
from typing import Any

from tandem.config.schema import ParallelConfig

NAME = "gpu"
COLLECTIVE_BACKEND = "nccl"
RAY_RESOURCE = "GPU"
VISIBLE_DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
FUSED_LAYERS, FUSED_DELTA_RULE = "transformer_engine", "fla"

# Words of a card's name and its bf16 tensor-core peak, dense, from NVIDIA's data sheets (half of what is stated with sparsity).
STATED_TERAFLOPS = (
    *(("GB200", 2500.0), ("B200", 2250.0), ("GH200", 989.4), ("H200 NVL", 835.5), ("H200", 989.4)),
    *(("H100 PCIe", 756.5), ("H100 NVL", 835.5), ("H100", 989.4), ("H800 PCIe", 756.5), ("H800", 989.4), ("H20", 148.0)),
    *(("A100", 312.0), ("A800", 312.0), ("A40", 149.7), ("A30", 165.0), ("A10", 125.0)),
    *(("L40S", 362.0), ("L40", 181.0), ("L20", 119.5), ("L4", 121.0)),
)


def has_driver() -> bool:
    """Whether the driver's library is there: a tenth of a second to know what `import torch` needs seconds for."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def missing() -> str:
    """Why this device cannot be used here; empty when it can."""
    if not has_driver():
        return "the NVIDIA driver (libcuda.so.1) is not installed"
    import torch

    return "" if torch.cuda.is_available() else "torch.cuda.is_available() is False"


# What a user may overrule by exporting another value.
DEFAULT_ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "TOKENIZERS_PARALLELISM": "false"}


def environment(num_threads: int) -> dict[str, str]:
    """Variables that every process of a run must have, set before torch is imported there."""
    return {"OMP_NUM_THREADS": str(num_threads)}


def prepare_megatron(parallel: ParallelConfig) -> None:
    """What must happen in a training process before `megatron.core` is imported: nothing."""


def set_device(local_rank: int) -> None:
    """Bind this process to one device."""
    import torch

    torch.cuda.set_device(local_rank)


def current() -> str:
    """The torch device of this process."""
    import torch

    return f"cuda:{torch.cuda.current_device()}"


def empty_cache() -> None:
    """Give cached memory back to the device."""
    import torch

    torch.cuda.empty_cache()


def synchronize() -> None:
    """Wait until the device has done what it was asked."""
    import torch

    torch.cuda.synchronize()


def process_group(store, rank: int, size: int, timeout: timedelta):
    """A backend of torch.distributed that knows nothing of the default group. Collective."""
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return ProcessGroupNCCL(store, rank, size, options)


def profiler() -> Any:
    """Torch's profiler of this device, not started yet: `start`, `stop`, `export_chrome_trace(path)`."""
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True)


def memory_peak_bytes() -> int:
    """Peak device memory of this process in bytes."""
    import torch

    return torch.cuda.max_memory_allocated()


def peak_flops(dtype: str) -> float | None:
    """Dense operations a second of this card in `dtype`, as its data sheet says; None where we do not know."""
    import torch

    return stated_flops(torch.cuda.get_device_name(0), dtype)


def stated_flops(card: str, dtype: str) -> float | None:
    """Args: card: as torch names it, e.g. `NVIDIA H100 80GB HBM3`. In fp32 the speed hangs on whether TF32 is allowed: None."""
    words = set(card.replace("-", " ").split())
    named = (tera * 1e12 for names, tera in STATED_TERAFLOPS if words.issuperset(names.split()))
    return next(named, None) if dtype in ("bfloat16", "float16") else None


def memory_bytes() -> int:
    """Memory of a device in bytes."""
    import torch

    return torch.cuda.get_device_properties(0).total_memory
