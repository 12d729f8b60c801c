"""A rank's files of a checkpoint, written by a thread from a copy of its shards in host memory, while training goes on.

Megatron-Core plans what each rank writes and how: its own saving would do the rest with collectives and forked processes, both of which
would have to wait for the training step that is running.
"""

import inspect
import pickle
import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.common import COMMON_STATE_FNAME
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from tandem.errors import RunError
from tandem.sync.digest import file_digest

BACKEND, VERSION = "torch_dist", 1
_METADATA = (".metadata", "metadata.json")


@dataclass(frozen=True)
class Written:
    """By one rank."""

    digests: dict[str, str]  # file -> blake3
    results: bytes = b""  # pickled: where in the files each tensor is


class _Plan(TorchDistSaveShardedStrategy):
    """Megatron's plan of a save, with its writer and metadata in reach."""

    def _get_save_and_finalize_callbacks(self, writer, save_state_dict_ret):
        self.writer, (_, self.metadata, _) = writer, save_state_dict_ret
        return super()._get_save_and_finalize_callbacks(writer, save_state_dict_ret)


class Writing:
    """Collective. When this is made, everything that will be written has been copied; a thread begins to write.

    Args:
        state: Megatron's sharded state; it is used up.
        beside: of this rank only: file name -> tensors that no one else writes to.
    """

    def __init__(self, state: dict[str, Any], path: Path, beside: dict[str, dict[str, Tensor]]):
        self.path, self.rank, self._beside = path, torch.distributed.get_rank(), beside
        live = {tensor.untyped_storage().data_ptr() for tensor in _tensors(state)}
        sharded, common = save_preprocess(state)
        self._common = pickle.loads(pickle.dumps(common)) if self.rank == 0 else None  # its settings go on changing
        assert hasattr(filesystem_async, "_results_queue"), "this Megatron-Core keeps the results of its writers elsewhere"
        # Its own is in a process that imports all of this again, and stays: half a GB a rank. Nobody writes to this one.
        filesystem_async._results_queue = queue.SimpleQueue()
        self._plan = _Plan(BACKEND, VERSION)
        self._plan.async_save(sharded, path)
        self._buckets = self._plan.writer.write_buckets
        _copy(self._buckets, live)
        self._future: Future[Written] = self._submit(self._write)

    @property
    def num_bytes(self) -> int:
        """Of the copy; 0 once it has been written."""
        return sum(tensor.nbytes for _, _, (_, tensors) in self._buckets for _, tensor in tensors)

    def poll(self) -> Written | None:
        """What was written last; None while it is being written.

        Raises:
            RunError: this rank could not write; says why.
        """
        return self.wait() if self._future.done() else None

    def wait(self) -> Written:
        """The same, once it is there."""
        return self._future.result()

    def conclude(self, results: list[bytes]) -> None:
        """On rank 0, once all ranks have written: begin to write what makes a checkpoint of their files, given `Written.results` of all."""
        self._future = self._submit(lambda: self._write_metadata([pickle.loads(one) for one in results]))

    def _submit(self, write: Callable[[], Written]) -> Future[Written]:
        thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        future = thread.submit(self._telling_why, write)
        thread.shutdown(wait=False)  # it ends when it has written
        return future

    def _telling_why(self, write: Callable[[], Written]) -> Written:
        try:
            return write()
        except (OSError, SafetensorError, RuntimeError) as error:  # torch.save raises the last for a disk that is full
            raise RunError(
                f"the checkpoint in {self.path} could not be written",
                f"rank {self.rank}: {_first_cause(error)}",
                "make room on its disk, or set another run_dir",
            ) from error

    def _write(self) -> Written:
        # The undecorated function: the other keeps the garbage of the training step that runs beside it.
        write = inspect.unwrap(filesystem_async.FileSystemWriterAsync.write_preloaded_data)
        transforms = [self._plan.writer.transforms] if hasattr(self._plan.writer, "transforms") else []
        names, results = [], []
        if self._common is not None:
            torch.save(self._common, self.path / COMMON_STATE_FNAME)
            names.append(COMMON_STATE_FNAME)
        for index, bucket in enumerate(self._buckets):
            told: queue.SimpleQueue = queue.SimpleQueue()
            counted: queue.Queue = queue.Queue()
            counted.put(index)
            write(transforms, index, bucket, results_queue=told, count_queue=counted, use_fsync=True)
            _, outcome = told.get()
            if isinstance(outcome, Exception):
                raise outcome
            results += outcome
            names.append(bucket[1])
            for part in bucket[2]:
                part.clear()  # its memory is free again
        for name, tensors in self._beside.items():
            save_file(tensors, self.path / name)
            names.append(name)
        self._beside = {}
        return Written({name: file_digest(self.path / name) for name in names}, pickle.dumps(results))

    def _write_metadata(self, results: list[list]) -> Written:
        self._plan.writer.finish(self._plan.metadata, results)
        save_config(CheckpointingConfig(BACKEND, VERSION), str(self.path))
        return Written({name: file_digest(self.path / name) for name in _METADATA})


def _first_cause(error: BaseException) -> BaseException:
    """The system's own error where there is one: torch's after it speaks of positions in its archive."""
    causes = [error]
    while following := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(following)
    return next((cause for cause in causes if isinstance(cause, OSError)), error)


def _tensors(state: dict[str, Any]) -> list[Tensor]:
    values = [getattr(value, "data", value) for value in nested_values(state)]
    return [value for value in values if torch.is_tensor(value)]


def _copy(buckets: list, live: set[int]) -> None:
    """Have every tensor that will be written in host memory of its own. What shares no storage with the state, Megatron has just made.

    Args:
        buckets: Megatron's: (path, name, ([(item, BytesIO)], [(item, tensor)])); changed in place, so that one tensor at a time is doubled.
        live: addresses of the state's storages.
    """
    for _, _, (_, tensors) in buckets:
        for index, (item, tensor) in enumerate(tensors):
            if tensor.device.type != "cpu" or tensor.untyped_storage().data_ptr() in live:
                tensors[index] = (item, tensor.to("cpu", copy=True))
