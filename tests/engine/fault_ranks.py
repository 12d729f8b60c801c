"""What a forked rank runs to show that no fault of a save makes or hides a checkpoint.

A module of its own: the run's imports happen before the fork.
"""

import builtins
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from megatron.core.dist_checkpointing import ShardedTensor

from tandem.checkpoint import checkpoints
from tandem.config.checkpointfolder import TRAINERS, find_checkpoint
from tandem.config.schema import ParallelConfig
from tandem.engine import checkpoint, writing
from tandem.errors import RunError
from tandem.sync.digest import file_digest
from tests.engine.ranks import config_for

OPERATIONS = (
    *((builtins, "open"), (os, "open"), (os, "fsync"), (os, "replace"), (shutil, "rmtree"), (torch, "save"), (writing, "save_file")),
    *((Path, name) for name in ("mkdir", "write_text", "rename")),
)


class Killed(BaseException):
    """As kill -9: nothing tidies up after it."""


def interrupted_saves(parallel: ParallelConfig, folder: str) -> dict[str, Any]:
    """Saves of step 2, after one of step 1, of which the n-th file operation, for every n, is refused by the system or the last thing done.

    Returns:
        How many were interrupted in each way, and what was wrong afterwards.
    """
    run_dir, wrong, counts = Path(folder), list[str](), {}
    save(run_dir, 1)
    for kind, error in (("refused", OSError(28, "No space left on device")), ("killed", Killed())):
        for count in range(1000):
            if ended := _interrupted(lambda: save(run_dir, 2), count, error):
                wrong += _wrong(run_dir, f"{kind} at {count}: {ended}", 1, 2)  # 2: it had its name before the fault
            else:
                break
        counts[kind] = count
        wrong += _wrong(run_dir, "whole", 2)
    return counts | {"wrong": wrong}


def save(run_dir: Path, step: int) -> None:
    """As `Run.save` with one rank, of two tensors, a value that all ranks have in common, and random numbers."""
    final = run_dir / "checkpoints" / f"step_{step:06d}"
    checkpoints.begin(final)
    trainers = checkpoints.beside(final) / TRAINERS
    trainers.mkdir()
    state = {name: ShardedTensor.from_rank_offsets(name, torch.full((100,), float(step))) for name in ("weight", "moment")} | {"lr": 0.5}
    begun = writing.Writing(state, trainers, {"random_00000.safetensors": {"torch": torch.get_rng_state()}})

    def files() -> dict[str, str]:
        return {f"{TRAINERS}/{name}": digest for name, digest in checkpoint.conclude(begun).items()}

    config = config_for(ParallelConfig()).model_dump(mode="json")
    checkpoints.complete(final, {"step": step, "total_steps": 9, "loader": {}, "algorithm": {}, "config": config}, files)


def _interrupted(call: Callable[[], None], count: int, error: BaseException) -> str:
    """How `call` ended when operation number `count` raised `error`, for `Killed` every later one too; "" when it did not come so far."""
    left, was_reached = [count], [False]

    def guard(real):
        def guarded(*args, **kwargs):
            if left[0] == 0 or (was_reached[0] and isinstance(error, Killed)):
                was_reached[0] = True
                left[0] = -1
                raise error
            left[0] -= 1
            return real(*args, **kwargs)

        return guarded

    try:
        patches = [mock.patch.object(module, name, guard(getattr(module, name))) for module, name in OPERATIONS]
        for patch in patches:
            patch.start()
        try:
            call()
        finally:
            for patch in patches:
                patch.stop()
    except (RunError, OSError, Killed) as ended:
        return f"{type(ended).__name__}"
    return "nothing was told" if was_reached[0] else ""


def _wrong(run_dir: Path, when: str, *allowed: int) -> list[str]:
    """What a start of the run in this folder would find that it should not. Leaves the checkpoint of step 1."""
    checkpoints.remove_leftovers(run_dir)
    found = find_checkpoint("auto", run_dir)
    if not found or found.step not in allowed:
        return [f"{when}: the newest is {found and found.step}"]
    changed = [name for name, digest in found.digests.items() if file_digest(found.path / name) != digest]
    others = [path.name for path in (run_dir / "checkpoints").iterdir() if path.name not in ("step_000001", found.path.name)]
    shutil.rmtree(run_dir / "checkpoints" / "step_000002", ignore_errors=True)
    return [f"{when}: {changed} changed"] * bool(changed) + [f"{when}: {others} are left"] * bool(others)
