"""The memory that a rank's buckets lie in: a file in shared memory, or memory of its device. And how another process sees it."""

import errno
import itertools
import mmap
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from tandem.errors import UserError

_file_numbers = itertools.count()  # of this process


class Memory(Protocol):
    """`bytes`: [num_bytes] uint8. `where`: the fields of a `Bucket` that tell a reader how to find it."""

    bytes: Tensor
    where: dict[str, Any]

    def claim(self, start: int, end: int, name: str) -> None:
        """Have room for the bytes start to end, the last of which are of the tensor `name`."""

    def complete(self) -> None:
        """Wait until what was copied is there for others."""

    def close(self) -> None: ...


class SharedFile:
    """A sparse file in a folder in memory. Its pages are claimed when they are first written to, and kept: making them costs several
    times what copying to them does."""

    def __init__(self, path: Path, num_bytes: int, half_bytes: int):
        self.path, self.where, self._half_bytes = path, {"path": str(path)}, half_bytes
        self._claimed: dict[int, int] = {}  # of each half's start: up to where
        self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        os.ftruncate(self._fd, num_bytes)
        self.bytes = torch.frombuffer(mmap.mmap(self._fd, num_bytes), dtype=torch.uint8)

    def claim(self, start: int, end: int, name: str) -> None:
        """Writing where the file system has no pages left would kill the process with SIGBUS.

        Raises:
            UserError: the file system is full.
        """
        half = start // self._half_bytes * self._half_bytes
        claimed = self._claimed.get(half, half)
        if end <= claimed:
            return
        try:
            os.posix_fallocate(self._fd, claimed, end - claimed)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise UserError(
                f"{self.path.parent} is full: no room for the {end - claimed} bytes of {name}",
                "weights reach the generator through shared memory, one bucket at a time",
                "enlarge the shared memory (docker: --shm-size), or lower sync.bucket_bytes",
            ) from error
        self._claimed[half] = end

    def complete(self) -> None:
        """A copy to the host is complete when it returns."""

    def close(self) -> None:
        """Remove the file; readers that have mapped it keep their view."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self.path.unlink(missing_ok=True)


def shared_files(directory: str | Path, prefix: str) -> Callable[[int, int], Memory]:
    """Makes files `<directory>/<prefix>-<pid>-<n>`.

    Args:
        directory: a folder in memory.
        prefix: unique to a run, so that what a killed writer left can be found.
    """
    return lambda num_bytes, half_bytes: SharedFile(
        Path(directory) / f"{prefix}-{os.getpid()}-{next(_file_numbers)}", num_bytes, half_bytes
    )


class DeviceMemory:
    """Memory of the rank's own device. Readers open the device's handle of it, or it is sent to them."""

    def __init__(self, num_bytes: int, device, where: Callable[[Tensor], dict[str, Any]]):
        """Args: device: a module of tandem.devices. where: of the memory, for readers."""
        self._device = device
        self.bytes = torch.empty(num_bytes, dtype=torch.uint8, device=device.current())
        self.where = where(self.bytes)

    def claim(self, start: int, end: int, name: str) -> None:
        """All of it is there from the beginning."""

    def complete(self) -> None:
        self._device.synchronize()

    def close(self) -> None:
        self.bytes = self.bytes[:0].clone()


def mapped(path: str) -> tuple[int, Tensor]:
    """A file's inode and its bytes, [size] uint8, which nobody may write to.

    Raises:
        FileNotFoundError: it is gone.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        found = os.fstat(fd)
        if not found.st_size:
            return found.st_ino, torch.empty(0, dtype=torch.uint8)
        data = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(fd)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")  # and nobody writes
        return found.st_ino, torch.frombuffer(data, dtype=torch.uint8)
