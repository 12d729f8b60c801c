"""CPU: gloo between ranks, Megatron-Core through `megatron_cpu`."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from tandem.config.schema import ParallelConfig

NAME = "cpu"
COLLECTIVE_BACKEND = "gloo"
RAY_RESOURCE = "CPU"
VISIBLE_DEVICES_VARIABLE = ""
FUSED_LAYERS = FUSED_DELTA_RULE = ""  # no package has them


def missing() -> str:
    """Why this device cannot be used here; empty when it can."""
    return ""


DEFAULT_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false"}  # what a user may overrule by exporting another value


def environment(num_threads: int) -> dict[str, str]:
    """Variables that every process of a run must have, set before torch is imported there."""
    # Two OpenMP threads on a busy machine were 10 to 60 times slower than one.
    return {"OMP_NUM_THREADS": str(num_threads), "MKL_NUM_THREADS": str(num_threads), "CUDA_VISIBLE_DEVICES": ""}


def prepare_megatron(parallel: ParallelConfig) -> None:
    """What must happen in a training process before `megatron.core` is imported."""
    from tandem.devices import megatron_cpu

    megatron_cpu.install()


def set_device(local_rank: int) -> None:
    """Bind this process to one device."""


def current() -> str:
    """The torch device of this process."""
    return "cpu"


def empty_cache() -> None:
    """Give cached memory back to the device: nothing is cached."""


def synchronize() -> None:
    """Wait until the device has done what it was asked: it has."""


def process_group(store, rank: int, size: int, timeout: timedelta):
    """A backend of torch.distributed that knows nothing of the default group. Collective."""
    from torch.distributed import ProcessGroupGloo

    return ProcessGroupGloo(store, rank, size, timeout)


def profiler() -> Any:
    """Torch's profiler of this device, not started yet: `start`, `stop`, `export_chrome_trace(path)`."""
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CPU], record_shapes=True)


def memory_peak_bytes() -> int:
    """Peak device memory of this process in bytes; on CPU the resident peak, since the device is the host."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def peak_flops(dtype: str) -> float | None:
    """Nobody states one: it hangs on the clock under load, the width of the vectors and what else runs here."""
    return None


def memory_bytes() -> int:
    """Memory of this machine, or what its container may have."""
    import psutil

    limit = Path("/sys/fs/cgroup/memory.max")
    allowed = limit.read_text().strip() if limit.is_file() else "max"
    total: int = psutil.virtual_memory().total
    return min(total, int(allowed)) if allowed.isdigit() else total
