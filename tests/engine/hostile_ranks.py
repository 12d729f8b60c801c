"""What a forked rank runs to show that a checkpoint cannot run code here. A module of its own: the run's imports happen before the fork."""

import os
import pickle
import zipfile
from pathlib import Path

import torch
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.mapping import ShardedObject
from torch.distributed.checkpoint import FileSystemReader

from tandem.config.schema import ParallelConfig
from tandem.engine import checkpoint, loading, writing
from tandem.errors import UserError


class Command:
    """Its pickle runs a command where it is loaded."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def state() -> dict:
    return {
        "weight": ShardedTensor.from_rank_offsets("weight", torch.arange(100.0)),
        "extra": ShardedObject("extra", torch.arange(3), (1,), (0,)),
        "lr": 0.5,
    }


def hostile_loads(parallel: ParallelConfig, folder: str) -> dict[str, tuple[str, bool]]:
    """Of a checkpoint with a pickle that runs a command, in each of the three places: what was told, and whether it ran."""
    told = {}
    for place, spoil in (("nowhere", None), (".metadata", _metadata), ("common.pt", _common), ("__0_0.distcp", _object)):
        path, mark = Path(folder) / place.strip("."), Path(folder) / f"{place.strip('.')}.ran"
        path.mkdir()
        checkpoint.conclude(writing.Writing(state(), path, {}))
        if spoil:
            spoil(path, Command(f"touch {mark}"))
        try:
            loaded = loading.load(state(), path)
            text = f"loaded {loaded['lr']} {loaded['extra'].sum()} {loaded['weight'].sum()}"
        except UserError as error:
            text = str(error)
        told[place] = text, mark.exists()
    return told


def _metadata(path: Path, command: Command) -> None:
    metadata = pickle.loads((path / ".metadata").read_bytes())
    metadata.planner_data = command
    (path / ".metadata").write_bytes(pickle.dumps(metadata))


def _common(path: Path, command: Command) -> None:
    torch.save({"lr": 0.5, "more": command}, path / "common.pt")
    assert zipfile.is_zipfile(path / "common.pt")


def _object(path: Path, command: Command) -> None:
    """In the place of the object between the tensors; torch's old format begins with a pickle."""
    places = FileSystemReader(path).read_metadata().storage_data
    [place] = [place for index, place in places.items() if index.fqn.startswith("extra")]
    with (path / place.relative_path).open("r+b") as file:
        file.seek(place.offset)
        file.write(pickle.dumps(command, protocol=2).ljust(place.length, b"\0"))
