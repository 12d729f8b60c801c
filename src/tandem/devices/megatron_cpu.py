"""Run the unmodified Megatron-Core package on CPU and gloo: what it asks of `torch.cuda` is answered for the CPU.

The changes are global to the process, so `install` runs in training processes only, before anything of `megatron` is imported.
Nothing of Megatron's arithmetic is touched: streams and events become no-ops (CPU work is already in order), `device="cuda"` means the
CPU, and the places in Megatron-Core that compare type names or look for Transformer Engine get what they look for.
"""

import contextlib
import functools
import inspect
import logging
import sys
from typing import Any

import torch
from torch.utils._device import _device_constructors

_CPU = torch.device("cpu")
_FACTORIES = (
    "empty zeros ones full tensor arange rand randn randint eye linspace as_tensor empty_like zeros_like ones_like full_like rand_like"
)
_installed = False


class _Event:
    """A CUDA event on a device where everything has already happened."""

    def __init__(self, *_: Any, **__: Any):
        pass

    def record(self, *_: Any, **__: Any) -> None:
        pass

    def wait(self, *_: Any, **__: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: "_Event") -> float:
        return 0.0


class _Stream:
    """The one stream of a CPU."""

    def __init__(self, *_: Any, **__: Any):
        pass

    def wait_stream(self, _: Any) -> None:
        pass

    def wait_event(self, _: Any) -> None:
        pass

    def record_event(self, *_: Any) -> _Event:
        return _Event()

    def synchronize(self) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream)

    def __hash__(self) -> int:
        return 0


def _names_cuda(device: Any) -> bool:
    return (isinstance(device, str) and device.startswith("cuda")) or (isinstance(device, torch.device) and device.type == "cuda")


def _on_cpu(function: Any) -> Any:
    """`function` with `device="cuda"` read as the CPU and pinned memory as ordinary memory."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _names_cuda(kwargs.get("device")):
            kwargs["device"] = _CPU
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return function(*args, **kwargs)

    return wrapper


def _redirect_torch_cuda() -> None:
    stream = _Stream()

    def answering(answer: Any = None) -> Any:  # a new function each time: torch._dynamo keeps a table keyed by them
        return lambda *_, **__: answer

    answers: dict[str, Any] = {
        "current_device": lambda: _CPU,
        "device_count": lambda: 1,
        "set_device": answering(),
        "synchronize": answering(),
        "empty_cache": answering(),
        "current_stream": answering(stream),
        "default_stream": answering(stream),
        "stream": lambda *_, **__: contextlib.nullcontext(),
        "Stream": _Stream,
        "Event": _Event,
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
        "manual_seed": lambda seed: torch.random.default_generator.manual_seed(int(seed)),
        "manual_seed_all": answering(),
        "memory_allocated": answering(0),
        "max_memory_allocated": answering(0),
        "memory_reserved": answering(0),
        "reset_peak_memory_stats": answering(),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    torch.cuda.random.get_rng_state = torch.cuda.get_rng_state
    torch.cuda.nvtx.range_push = lambda *_, **__: 0
    torch.cuda.nvtx.range_pop = lambda *_, **__: 0


def _redirect_tensors() -> None:
    _device_constructors()  # torch caches the functions that `with torch.device(...)` acts on: let it see the original ones
    for name in _FACTORIES.split():
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.nn.Module.cuda = lambda self, *_, **__: self
    type_of, to = torch.Tensor.type, torch.Tensor.to

    def cuda_type(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        # Megatron's optimizers sort parameters by comparing with 'torch.cuda.FloatTensor'.
        return type_of(self).replace("torch.", "torch.cuda.", 1) if dtype is None else type_of(self, dtype, *args, **kwargs)

    def to_cpu(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if _names_cuda(kwargs.get("device")):
            kwargs["device"] = _CPU
        return to(self, *(_CPU if _names_cuda(arg) else arg for arg in args), **kwargs)

    torch.Tensor.type = cuda_type
    torch.Tensor.to = to_cpu


def _patch_megatron() -> None:
    import megatron.core.jit as jit

    jit.disable_jit_fuser()  # it is torch.compile here: 24 s of start-up for nothing
    import megatron.core.tensor_parallel.mappings as mappings
    import megatron.core.tensor_parallel.random as random
    import megatron.core.transformer.moe.moe_utils as moe_utils
    import megatron.core.transformer.moe.token_dispatcher as token_dispatcher

    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    # Device and host share one generator here, which its RNG tracker takes for a mistake of the caller and warns about.
    logging.getLogger(random.__name__).addFilter(lambda record: "CPU RNG state changed" not in record.getMessage())
    if not hasattr(moe_utils, "te_general_gemm"):  # 0.16.1 names it without Transformer Engine when moe_router_dtype is set
        moe_utils.te_general_gemm = None
    # Split sizes become Python lists only for tensors that are_cuda; gloo needs the lists too.
    token_dispatcher.maybe_move_tensor_to_cpu = lambda tensor, as_numpy=False, record_stream=False: (
        tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor
    )
    mappings._gather_along_first_dim = _uneven_or(mappings._gather_along_first_dim, _gather_uneven, "output_split_sizes")
    mappings._reduce_scatter_along_first_dim = _uneven_or(
        mappings._reduce_scatter_along_first_dim, _reduce_scatter_uneven, "input_split_sizes"
    )


def _uneven_or(even: Any, uneven: Any, name: str) -> Any:
    """`even` of Megatron's, but `uneven` when the argument `name` gives sizes: gloo's gather and reduce-scatter want equal parts."""
    signature = inspect.signature(even)

    @functools.wraps(even)
    def wrapper(*args: Any, **kwargs: Any) -> torch.Tensor:
        given = signature.bind(*args, **kwargs).arguments
        input_, group, sizes = given["input_"], given["group"], given.get(name)
        return even(*args, **kwargs) if sizes is None or group.size() == 1 else uneven(input_.contiguous(), group, sizes)

    return wrapper


def _gather_uneven(input_: torch.Tensor, group: Any, sizes: list[int]) -> torch.Tensor:
    """`sizes[i]` rows of every rank i, put together: an all-to-all in which each rank sends everybody the same."""
    output = input_.new_empty(sum(sizes), *input_.shape[1:])
    torch.distributed.all_to_all_single(output, torch.cat([input_] * len(sizes)), sizes, [len(input_)] * len(sizes), group=group)
    return output


def _reduce_scatter_uneven(input_: torch.Tensor, group: Any, sizes: list[int]) -> torch.Tensor:
    """The sum over ranks of the `sizes[rank]` rows that are this rank's."""
    own = sizes[group.rank()]
    output = input_.new_empty(len(sizes), own, *input_.shape[1:])
    torch.distributed.all_to_all_single(output.flatten(0, 1), input_, [own] * len(sizes), sizes, group=group)
    return output.sum(0)


def install() -> None:
    """Make `megatron.core` importable and right on CPU in this process; a second call does nothing."""
    global _installed
    if _installed:
        return
    assert "megatron.core" not in sys.modules, "megatron_cpu.install() must run before megatron.core is imported"
    _redirect_torch_cuda()
    _redirect_tensors()
    _patch_megatron()
    _installed = True
