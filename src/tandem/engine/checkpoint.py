"""Model and optimizer by Megatron's distributed checkpointing: each rank writes its shards, and reads them under any layout.

Beside them each rank's random number generators, which come back when there are as many ranks.
"""

import queue
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core import dist_checkpointing, tensor_parallel
from megatron.core.dist_checkpointing.strategies import filesystem_async
from safetensors.torch import load_file
from safetensors.torch import save as as_safetensors
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from tandem.engine.optimizer import own_step_counts
from tandem.errors import RunError
from tandem.sync.digest import file_digest

_OF_ALL = {".metadata", "metadata.json", "common.pt"}
_METADATA = {"distrib_optim_sharding_type": "fully_reshardable"}


def _sharded_model(engine) -> dict[str, Any]:
    names = _chunk_names(engine)
    return {name: chunk.sharded_state_dict() for name, chunk in zip(names, engine.chunks)}


def _chunk_names(engine) -> list[str]:
    return ["model"] if len(engine.chunks) == 1 else [f"model{index}" for index in range(len(engine.chunks))]


def _sharded_state(engine, *, is_loading: bool) -> dict[str, Any]:
    model = _sharded_model(engine)
    state = dict(model)
    state["optimizer"] = engine.optimizer.sharded_state_dict(model, is_loading=is_loading, metadata=_METADATA)
    return state


def save(engine, path: Path, *, optimizer: bool = True) -> dict[str, str]:
    """Collective. `path` exists and is empty.

    Args:
        optimizer: False: the model alone, as the reference policy is kept.

    Returns:
        The files that this rank has written, and the blake3 of each.

    Raises:
        RunError: a rank could not write its part; says why.
    """
    engine.bring_back()
    rank = torch.distributed.get_rank()
    assert hasattr(filesystem_async, "_results_queue"), "this Megatron-Core keeps the results of its writers elsewhere"
    # Its own is in a process that imports all of this again, and stays: half a GB a rank. Within this process any queue will do.
    filesystem_async._results_queue = queue.SimpleQueue()
    try:
        dist_checkpointing.save(_sharded_state(engine, is_loading=False) if optimizer else _sharded_model(engine), str(path))
        if optimizer:
            (path / _random_file(rank)).write_bytes(as_safetensors(_random_states()))  # save_file has one of another name on the way
    except (CheckpointException, OSError) as error:
        failures = getattr(error, "failures", {rank: (error, None)})
        why = "; ".join(f"rank {rank}: {cause}" for rank, (cause, _) in sorted(failures.items()))
        raise RunError(f"the checkpoint in {path} could not be written", why, "make room on its disk, or set another run_dir") from error
    written = [file for file in path.iterdir() if _writer(file.name) == rank]
    return {file.name: file_digest(file) for file in written}


def _writer(name: str) -> int | None:
    """The rank that wrote a file: `__3_0.distcp`, `random_00003.safetensors`; 0 for what belongs to all, None for no file of ours."""
    if name in _OF_ALL:
        return 0
    found = re.fullmatch(r"__(\d+)_\d+\.distcp|random_(\d+)\.safetensors", name)
    return int(found[1] or found[2]) if found else None


def load(engine, path: Path, *, optimizer: bool = True) -> None:
    """Collective. Fill the model, and the optimizer, which has been started, and the random number generators."""
    engine.bring_back()
    state = dist_checkpointing.load(_sharded_state(engine, is_loading=True) if optimizer else _sharded_model(engine), str(path))
    for name, chunk in zip(_chunk_names(engine), engine.chunks):
        chunk.load_state_dict(state[name])
    if not optimizer:
        return
    engine.optimizer.load_state_dict(state["optimizer"])
    own_step_counts(engine.optimizer)
    world = torch.distributed.get_world_size()
    if not (path / _random_file(world)).exists() and (path / _random_file(world - 1)).exists():
        _set_random_states(load_file(path / _random_file(torch.distributed.get_rank())))


def _random_file(rank: int) -> str:
    return f"random_{rank:05d}.safetensors"


def _random_states() -> dict[str, Tensor]:
    tracker = tensor_parallel.get_cuda_rng_tracker().get_states()
    numbers = np.random.get_state()
    mine = {"torch": torch.get_rng_state(), "numpy": torch.from_numpy(np.append(numbers[1], numbers[2]).astype(np.int64))}
    mine["python"] = torch.tensor([*random.getstate()[1]], dtype=torch.int64)
    return mine | {f"tracker.{name}": state.cpu() for name, state in tracker.items() if torch.is_tensor(state)}


def _set_random_states(states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["torch"])
    *keys, position = states["numpy"].tolist()
    np.random.set_state(("MT19937", np.array(keys, np.uint32), position))
    random.setstate((3, tuple(states["python"].tolist()), None))
    tracker = tensor_parallel.get_cuda_rng_tracker()
    known = tracker.get_states()
    tracker.set_states(known | {name: states[f"tracker.{name}"] for name in known if f"tracker.{name}" in states})
