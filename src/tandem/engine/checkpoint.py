"""Model and optimizer by Megatron's distributed checkpointing: each rank writes its shards (`writing.py`), and reads them under any layout.

Beside them each rank's random number generators, which come back when there are as many ranks.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core import tensor_parallel
from megatron.core.dist_checkpointing.dict_utils import nested_values
from safetensors.torch import load_file
from torch import Tensor

from tandem.engine import loading
from tandem.engine.optimizer import own_step_counts
from tandem.engine.writing import Writing, Written
from tandem.errors import RunError

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
    _leave_out_doubles(state["optimizer"], model)
    return state


def _leave_out_doubles(optimizer: dict[Any, Any], model: dict[str, Any]) -> None:
    """Master weights of fp32 parameters are the parameters themselves, or a copy in host memory (`optimizer.py` fills them from there)."""
    fp32 = {shard.key for shard in nested_values(model) if torch.is_tensor(shard.data) and shard.data.dtype == torch.float32}
    for part in [optimizer] if "param_state" in optimizer else optimizer.values():
        for tensors in part["param_state"].values():
            if tensors["param"].key.partition("optimizer.state.param.")[2] in fp32:
                del tensors["param"]


def begin_save(engine, path: Path, *, optimizer: bool = True) -> Writing:
    """Collective. Copy this rank's part into host memory and begin to write it; training may go on at once. `path` exists and is empty.

    Args:
        optimizer: False: the model alone, as the reference policy is kept.

    Raises:
        RunError: the folder cannot be used; says why.
    """
    engine.bring_back()
    rank = torch.distributed.get_rank()
    beside = {_random_file(rank): _random_states()} if optimizer else {}
    try:
        return Writing(_sharded_state(engine, is_loading=False) if optimizer else _sharded_model(engine), path, beside)
    except OSError as error:
        why = f"rank {rank}: {error}"
        raise RunError(f"the checkpoint in {path} could not be written", why, "make room on its disk, or set another run_dir") from error


def save(engine, path: Path, *, optimizer: bool = True) -> dict[str, str]:
    """Collective: begin and conclude.

    Returns:
        The files that this rank has written, and the blake3 of each.

    Raises:
        RunError: a rank could not write its part; says why, on every rank.
    """
    return conclude(begin_save(engine, path, optimizer=optimizer))


def conclude(writing: Writing) -> dict[str, str]:
    """Collective: wait until all ranks have written, then write what their files have in common. Returns and raises as `save`."""
    parts = _of_all(writing)
    if writing.rank == 0:
        writing.conclude([part.results for part in parts])
    return parts[writing.rank].digests | _of_all(writing)[writing.rank].digests


def _of_all(writing: Writing) -> list[Written]:
    """What each rank has written. Collective; raises RunError on every rank when one of them could not."""
    told: list[Any] = [None] * torch.distributed.get_world_size()
    try:
        mine: Written | RunError = writing.wait()
    except RunError as error:
        mine = error
    torch.distributed.all_gather_object(told, mine)
    for one in told:
        if isinstance(one, RunError):
            raise one
    return told


def load(engine, path: Path, *, optimizer: bool = True) -> None:
    """Collective. Fill the model, and the optimizer, which has been started, and the random number generators. Raises as `loading.load`."""
    engine.bring_back()
    state = loading.load(_sharded_state(engine, is_loading=True) if optimizer else _sharded_model(engine), path)
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
