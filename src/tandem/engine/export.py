"""This rank's share of an export: the tensors that it publishes, written into weight files that the controller has made beforehand.

A tensor has one place, known from the headers of the source's files, so ranks write beside each other and hold one tensor at a time.
"""

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from blake3 import blake3
from torch import Tensor

from tandem.errors import UserError, cannot_write
from tandem.qwen3_5.checkpoint import HuggingFaceFolder

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}  # the format's names of those that are trained
CHUNK_BYTES = 64 << 20  # a system call writes less than 2 GiB


@dataclass(frozen=True)
class Piece:
    """What was written: a tensor, or an expert's matrix inside a fused one."""

    name: str
    file: str
    begin: int  # byte of the file
    num_bytes: int
    checksum: str  # blake3


def write_share(engine, source: Path, target: Path) -> list[Piece]:
    """Write the tensors that this rank publishes, in the dtypes of `source`; collective like `weights.tensors`.

    Args:
        source: the folder that the engine was started from.
        target: holds every weight file of `source` at its full size.

    Raises:
        UserError: this rank's node does not see the files of `target`.
        RunError: the disk takes no more.
    """
    folder = HuggingFaceFolder(source, tied=engine.hf_config.tie_word_embeddings)
    return write_tensors(counted(engine), folder, folder, target)


def counted(engine) -> Iterator[tuple[str, Tensor]]:
    """The engine's tensors, each told to its `progress` when it has been written."""
    total = engine.num_tensors
    for done, named in enumerate(engine.tensors(), 1):
        yield named
        engine.progress(done, total)


def write_tensors(tensors: Iterator[tuple[str, Tensor]], source: HuggingFaceFolder, layout: HuggingFaceFolder, target: Path) -> list[Piece]:
    """Write tensors of the model where `layout`, `source` or one like it in other dtypes, has them; raises as `write_share`."""
    pieces: list[Piece] = []
    files: dict[str, int] = {}
    try:
        for name, tensor in tensors:
            for before, place in zip(source.places(name), layout.places(name), strict=True):
                stored = source.read(before)
                assert tensor.shape == stored.shape, f"{name}: {tensor.shape} is published, {stored.shape} was loaded"
                if place.file not in files:
                    files[place.file] = _open(target / place.file, layout.headers[place.file].file_bytes)
                dtype = DTYPES[layout.headers[place.file].tensors[place.tensor].dtype]
                data = _as_stored(tensor.detach().cpu(), stored).to(dtype).contiguous().view(-1).view(torch.uint8).numpy()
                checksum = write_at(files[place.file], memoryview(data), place.begin)
                pieces.append(Piece(name, place.file, place.begin, data.nbytes, checksum))
        for file in files.values():
            os.fsync(file)
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        for file in files.values():
            os.close(file)
    return pieces


def _as_stored(tensor: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
    """In the dtype of `stored`; itself when training, in a narrower dtype, has not moved it from there."""
    return stored if torch.equal(stored.to(tensor.dtype), tensor) else tensor.to(stored.dtype)


def write_at(file: int, data: memoryview, begin: int) -> str:
    """Write all of `data` from the byte `begin` of an open file on; returns its blake3."""
    hasher, done = blake3(), 0
    while done < len(data):
        count = os.pwrite(file, data[done : done + CHUNK_BYTES], begin + done)
        hasher.update(data[done : done + count])
        done += count
    return hasher.hexdigest()


def _open(path: Path, num_bytes: int) -> int:
    if not path.exists() or path.stat().st_size != num_bytes:
        raise UserError(
            f"{socket.gethostname()} does not see {path}",
            "every training rank writes into the files that the controller makes: the run's folder must be on a disk that all nodes share",
            "set run_dir to a folder on a shared disk",
        )
    return os.open(path, os.O_WRONLY)
