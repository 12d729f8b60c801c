"""Reading Megatron's checkpoints without running what stands in them.

Three of their parts are pickles: `.metadata`, `common.pt` and the objects between the tensors of a `.distcp`. A pickle can name any
function of any package, and loading calls it; torch reads the first and the third without looking. Here only classes that Megatron itself
writes may be named.
"""

import os
import pickle
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from torch.distributed.checkpoint.api import CheckpointException

from tandem.errors import UserError

METADATA = ".metadata"
_FORCED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_OF_METADATA = {
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        *("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "_MEM_FORMAT_ENCODING"),
        *("TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata"),
    },
    "torch.distributed.checkpoint.planner": {"SavePlan", "TensorWriteData", "WriteItem", "WriteItemType"},
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in _OF_METADATA.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def load(state: dict[str, Any], path: Path, **options: Any) -> dict[str, Any]:
    """Megatron's `dist_checkpointing.load`. Collective.

    Raises:
        UserError: a pickle in `path` names what Megatron does not write; nothing of it has been called.
    """
    before = os.environ.get(_FORCED)
    os.environ[_FORCED] = "1"  # torch's own loader of objects asks for everything
    try:
        with (path / METADATA).open("rb") as file:
            _Reader(file).load()
        return dist_checkpointing.load(state, str(path), **options)
    except (pickle.UnpicklingError, CheckpointException) as error:
        told = _of_pickle(error)
        if told is None:
            raise
        raise UserError(
            f"the checkpoint in {path} names code to run: it was not loaded",
            _first_sentence(told),
            "go on from a checkpoint that Tandem wrote; ask whoever gave you this one",
        ) from error
    finally:
        os.environ.pop(_FORCED)
        if before is not None:
            os.environ[_FORCED] = before


def _of_pickle(error: BaseException) -> pickle.UnpicklingError | None:
    if isinstance(error, CheckpointException):
        return next((one for one, _ in error.failures.values() if isinstance(one, pickle.UnpicklingError)), None)
    return error if isinstance(error, pickle.UnpicklingError) else None


def _first_sentence(error: pickle.UnpicklingError) -> str:
    """torch's message has a page of advice on how to load it all the same."""
    lines = [line.strip() for line in str(error).splitlines()]
    named = [line for line in lines if "GLOBAL" in line or line.startswith(("it names", "Unsupported"))]
    return named[0] if named else lines[0]
