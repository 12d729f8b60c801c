"""What forked ranks run to export as a run does. A module of its own: the run's imports happen before the fork."""

from pathlib import Path
from types import SimpleNamespace

import torch

from tandem.checkpoint.export import export
from tandem.config.schema import ParallelConfig
from tandem.data.types import Sequence
from tandem.engine import checkpoint
from tandem.engine.export import Piece, write_share
from tandem.errors import UserError
from tests.engine.ranks import make_engine


def load_and_export(model_path: str, parallel: ParallelConfig, target: str, **sections) -> None:
    export_engine(make_engine(model_path, parallel, **sections), model_path, target)


def train_save_and_export(
    model_path: str, parallel: ParallelConfig, sequences: list[Sequence], folder: str, target: str, **sections
) -> dict[str, str]:
    """Two steps, a checkpoint in `folder`, an export as `target`; returns the checkpoint's files and digests of this rank."""
    engine = make_engine(model_path, parallel, **sections)
    engine.start_optimizer(lr=1e-3, weight_decay=0.01)
    for _ in range(2):
        engine.update(sequences, supervised=True, lr=1e-3)
    digests = checkpoint.save(engine, Path(folder))
    export_engine(engine, model_path, target)
    return digests


def export_engine(engine, model_path: str, target: str) -> None:
    """Rank 0 is the controller too: what a run does with actors is done with collectives."""

    def share(*paths: str | None) -> list[Piece]:
        told, shares = list(paths), [[] for _ in range(torch.distributed.get_world_size())]
        torch.distributed.broadcast_object_list(told, src=0)
        torch.distributed.all_gather_object(shares, write_share(engine, Path(told[0]), Path(told[1])))
        return [piece for share in shares for piece in share]

    if torch.distributed.get_rank() == 0:
        export(SimpleNamespace(export=share), Path(model_path), Path(target))
    else:
        share(None, None)


def refusals(folders: list[str], parallel: ParallelConfig) -> list[str]:
    """What is said when an engine is made of each folder."""
    told = []
    for folder in folders:
        try:
            make_engine(folder, parallel)
        except UserError as error:
            told.append(error.what)
        else:
            told.append("accepted")
    return told
