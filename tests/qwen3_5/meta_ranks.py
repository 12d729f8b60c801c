"""Every rank of a layout built on the meta device in one process, in worlds that torch's fake process group only pretends.

Megatron is imported inside `build`, which runs in a process of its own, never in pytest's: the changes for the CPU are global to a process.
"""

import gc
import re
import time
from dataclasses import dataclass
from pathlib import Path

from tandem.config.schema import Config, ParallelConfig
from tandem.qwen3_5.rules import Rule


@dataclass(frozen=True)
class Part:
    """One parameter of one rank and where it comes from."""

    hf: tuple[str, ...]
    rule: Rule
    shape: tuple[int, ...]
    cut: tuple[int, int]  # the rank's place in the group that shares the tensor, and the group's size
    replica: tuple[bool, int]  # an expert's or not, and the number of the copy of the model that it belongs to


@dataclass(frozen=True)
class Rank:
    parts: list[Part]
    unmapped: set[str]  # parameters without an entry in the weight map, and entries without a parameter
    published: list[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Built:
    ranks: list[Rank]
    cpu_seconds: float
    peak_bytes: int


def build(hf_config, parallel: ParallelConfig, world_size: int) -> Built:
    from tandem.devices import cpu

    cpu.prepare_megatron(ParallelConfig())
    import torch

    torch.cuda.current_device = lambda: torch.device("meta")
    gc.disable()  # it would walk through tens of thousands of modules again and again, and finds next to nothing
    start = time.process_time()
    ranks = [_build_rank(hf_config, parallel, rank, world_size) for rank in range(world_size)]
    # ru_maxrss would count the memory of the parent too, from which this process was forked
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
    return Built(ranks, time.process_time() - start, peak)


def _build_rank(hf_config, parallel: ParallelConfig, rank: int, world_size: int) -> Rank:
    import torch
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from tandem.devices import cpu
    from tandem.devices.parts import choose_parts
    from tandem.engine import groups
    from tandem.qwen3_5.build import build_chunks
    from tandem.qwen3_5.config import transformer_config

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    new_group = torch.distributed.new_group
    torch.distributed.new_group = lambda *args, **kwargs: new_group(*args, **kwargs | {"backend": "fake"})  # Megatron asks for gloo too
    try:
        groups.initialize_model_parallel(parallel, seed=0)
        config = Config.model_validate({"parallel": parallel.model_dump()})
        parts = choose_parts(cpu)
        return _describe(build_chunks(transformer_config(hf_config, config, parts), hf_config, parts))
    finally:
        torch.distributed.new_group = new_group
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def _describe(chunks) -> Rank:
    from megatron.core import parallel_state as mpu

    from tandem.qwen3_5 import weights

    experts = (mpu.get_expert_tensor_parallel_rank(), mpu.get_expert_tensor_parallel_world_size()), mpu.get_expert_data_parallel_rank()
    dense = (mpu.get_tensor_model_parallel_rank(), mpu.get_tensor_model_parallel_world_size()), mpu.get_data_parallel_rank(True)
    parts, unmapped = [], set()
    for chunk in chunks:
        parameters = dict(chunk.named_parameters())
        assert all(parameter.is_meta for parameter in parameters.values()), "a parameter is not made on the rank's device"
        entries = weights.weight_map(chunk)
        unmapped |= {entry.megatron for entry in entries} ^ set(parameters)
        for entry in entries:
            cut, replica = experts if entry.expert else dense
            parts.append(Part(entry.hf, entry.rule, tuple(parameters[entry.megatron].shape), cut, (entry.expert, replica)))
    return Rank(parts, unmapped, [(name, tuple(tensor.shape)) for name, tensor in weights.tensors(chunks)])
