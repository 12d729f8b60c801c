"""Model and optimizer by Megatron's distributed checkpointing: each rank writes its shards, and reads them under any layout."""

from pathlib import Path
from typing import Any

from megatron.core import dist_checkpointing
from torch.distributed.checkpoint.api import CheckpointException

from tandem.errors import RunError

_METADATA = {"distrib_optim_sharding_type": "fully_reshardable"}


def _sharded_state(engine, *, is_loading: bool) -> dict[str, Any]:
    model: dict[str, Any] = {}
    for index, chunk in enumerate(engine.chunks):
        model["model" if len(engine.chunks) == 1 else f"model{index}"] = chunk.sharded_state_dict()
    state = dict(model)
    state["optimizer"] = engine.optimizer.sharded_state_dict(model, is_loading=is_loading, metadata=_METADATA)
    return state


def save(engine, path: Path) -> None:
    """Collective. `path` exists and is empty.

    Raises:
        RunError: a rank could not write its part; says why.
    """
    try:
        dist_checkpointing.save(_sharded_state(engine, is_loading=False), str(path))
    except CheckpointException as error:
        why = "; ".join(f"rank {rank}: {cause}" for rank, (cause, _) in sorted(error.failures.items()))
        raise RunError(f"the checkpoint in {path} could not be written", why, "make room on its disk, or set another run_dir") from error


def load(engine, path: Path) -> None:
    """Collective. Fill model and optimizer; the engine's optimizer has been started."""
    state = dist_checkpointing.load(_sharded_state(engine, is_loading=True), str(path))
    for index, chunk in enumerate(engine.chunks):
        chunk.load_state_dict(state["model" if len(engine.chunks) == 1 else f"model{index}"])
    engine.optimizer.load_state_dict(state["optimizer"])
