"""Weights in shared memory: a writer fills one bucket file at a time, readers map it and check every tensor before they use it."""

import errno
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from glob import escape
from math import prod
from pathlib import Path

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from tandem.errors import RunError, UserError
from tandem.sync.types import Bucket, TensorEntry

SHARED_MEMORY = Path("/dev/shm")
ALIGNMENT = 64  # bytes: a cache line, and a multiple of every dtype's size

# Names as in the safetensors format.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class BucketWriter:
    """Writes tensors into files `<directory>/<prefix>-<pid>-<n>`, of which at most one exists at any time.

    Args:
        directory: a folder in memory, usually `SHARED_MEMORY`.
        prefix: starts every file name, so that `cleanup` finds what a killed writer left; unique to a run.
        bucket_bytes: largest bucket, at least ALIGNMENT. A tensor that is larger is cut.
        verify_share: of the tensors that get a checksum, 0 to 1; which ones changes with the version.
    """

    def __init__(self, directory: str | Path, prefix: str, bucket_bytes: int, verify_share: float = 1.0):
        self.directory, self.prefix, self.verify_share = Path(directory), prefix, verify_share
        self.bucket_bytes = bucket_bytes // ALIGNMENT * ALIGNMENT
        self._num_files = 0

    def write(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> Iterator[Bucket]:
        """Yield the tensors in buckets, in their order. A bucket's file is removed when the generator resumes or is closed.

        Args:
            tensors: Hugging Face names and tensors of any device, dtype and layout; each is read once and not kept.
            version: of the weights, stamped on every bucket.

        Raises:
            UserError: the shared memory is too small.
        """
        file: _BucketFile | None = None
        try:
            for name, tensor in tensors:
                checked = is_checked(name, version, self.verify_share)
                for start, part in self._parts(tensor):
                    if file is not None and not file.has_room(part.nbytes):
                        yield file.seal(version)
                        file.remove()
                        file = None
                    if file is None:
                        file = self._new_file(self.bucket_bytes)
                    file.append(name, tensor, start, part, checked)
            if file is not None:
                yield file.seal(version)
        finally:
            if file is not None:
                file.remove()

    def _parts(self, tensor: Tensor) -> Iterator[tuple[int, Tensor]]:
        """(first byte, part) of the tensor, none larger than a bucket."""
        if tensor.nbytes <= self.bucket_bytes:
            yield 0, tensor
            return
        size = tensor.element_size()
        for index, part in enumerate(tensor.reshape(-1).split(self.bucket_bytes // size)):
            yield index * self.bucket_bytes, part

    def release(self, bucket: Bucket) -> None:
        """Remove the bucket's file before the generator resumes: readers that have mapped it keep their view."""
        Path(bucket.path).unlink(missing_ok=True)

    def _new_file(self, capacity: int) -> "_BucketFile":
        path = self.directory / f"{self.prefix}-{os.getpid()}-{self._num_files}"
        self._num_files += 1
        return _BucketFile(path, capacity)


@dataclass
class _BucketFile:
    """One bucket while it is filled: a sparse file of `capacity` bytes whose pages are claimed tensor by tensor."""

    path: Path
    capacity: int
    used: int = 0
    entries: list[TensorEntry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._fd = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        os.ftruncate(self._fd, max(self.capacity, 1))
        self._map: mmap.mmap | None = mmap.mmap(self._fd, max(self.capacity, 1))

    def has_room(self, num_bytes: int) -> bool:
        return _aligned(self.used) + num_bytes <= self.capacity

    def append(self, name: str, whole: Tensor, start: int, part: Tensor, checked: bool) -> None:
        """Add `part` of the tensor `whole`, which begins at its byte `start`."""
        assert self._map is not None and part.dtype in DTYPE_NAMES, f"{name}: a sealed bucket or an unknown dtype {part.dtype}"
        offset, num_bytes = _aligned(self.used), part.nbytes
        if num_bytes:
            self._claim(name, offset, num_bytes)
            torch.frombuffer(self._map, dtype=part.dtype, count=part.numel(), offset=offset).view(part.shape).copy_(part)
        checksum = _checksum(self._map, offset, num_bytes) if checked else ""
        is_last = start + num_bytes == whole.nbytes
        dtype, shape = DTYPE_NAMES[part.dtype], tuple(whole.shape)
        self.entries.append(TensorEntry(name, dtype, shape, offset, num_bytes, checksum, start, is_last))
        self.used = offset + num_bytes

    def _claim(self, name: str, offset: int, num_bytes: int) -> None:
        """Reserve the pages first: writing to a mapping that the file system cannot back kills the process with SIGBUS."""
        try:
            os.posix_fallocate(self._fd, offset, num_bytes)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise UserError(
                f"{self.path.parent} is full: no room for the {num_bytes} bytes of {name}",
                "weights reach the generator through shared memory, one bucket at a time",
                "enlarge the shared memory (docker: --shm-size), or lower sync.bucket_bytes",
            ) from error

    def seal(self, version: int) -> Bucket:
        """Cut the file to what was written and let go of it."""
        self._map = None
        os.ftruncate(self._fd, self.used)
        os.close(self._fd)
        self._fd = -1
        return Bucket(str(self.path), version, tuple(self.entries))

    def remove(self) -> None:
        self._map = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self.path.unlink(missing_ok=True)


def is_checked(name: str, version: int, share: float) -> bool:
    """Whether this tensor's checksum is compared in the publication of `version`: a share of the names, others each time."""
    drawn = int.from_bytes(blake3(f"{version} {name}".encode()).digest(length=4), "little")
    return drawn < share * 2**32


class BucketReader:
    """Reads the buckets of one publication and puts tensors together that came in pieces."""

    def __init__(self) -> None:
        self._unfinished: dict[str, tuple[Tensor, int]] = {}  # bytes, how many of them are there

    def read(self, bucket: Bucket) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that this bucket completes, mostly as views of a private mapping: they outlive the file, and writing to them
        changes nothing for others. Checksums are compared before a tensor is yielded.

        Raises:
            RunError: the file is missing or shorter than its entries say, a checksum differs, or a piece is not the next one; names the
                tensor and the file.
        """
        mapping, size = _open(bucket)
        for entry in bucket.entries:
            dtype, numel = DTYPES[entry.dtype], prod(entry.shape)
            whole = numel * dtype.itemsize
            if entry.start + entry.num_bytes > whole or (entry.is_last and entry.start + entry.num_bytes != whole):
                raise _damaged(bucket, entry.name, f"{entry.num_bytes} bytes cannot be {entry.dtype} of shape {entry.shape}")
            if entry.offset + entry.num_bytes > size:
                raise _damaged(bucket, entry.name, f"it ends at byte {entry.offset + entry.num_bytes} of a file of {size}")
            if entry.checksum and _checksum(mapping, entry.offset, entry.num_bytes) != entry.checksum:
                raise _damaged(bucket, entry.name, "its bytes do not have the checksum that the trainer wrote")
            if numel == 0:
                yield entry.name, torch.empty(entry.shape, dtype=dtype)
            elif entry.is_last and entry.start == 0:
                yield entry.name, torch.frombuffer(mapping, dtype=dtype, count=numel, offset=entry.offset).view(entry.shape)
            elif (tensor := self._add_piece(bucket, entry, mapping, whole)) is not None:
                yield entry.name, tensor.view(dtype).view(entry.shape)

    def _add_piece(self, bucket: Bucket, entry: TensorEntry, mapping: mmap.mmap, whole: int) -> Tensor | None:
        """The tensor's bytes when this was its last piece."""
        tensor, there = self._unfinished.pop(entry.name, None) or (torch.empty(whole, dtype=torch.uint8), 0)
        if there != entry.start:
            raise _damaged(bucket, entry.name, f"its piece from byte {entry.start} came after {there} bytes")
        tensor[there : there + entry.num_bytes] = torch.frombuffer(mapping, dtype=torch.uint8, count=entry.num_bytes, offset=entry.offset)
        if entry.is_last:
            return tensor
        self._unfinished[entry.name] = tensor, there + entry.num_bytes
        return None


def _open(bucket: Bucket) -> tuple[mmap.mmap, int]:
    """A private mapping of the bucket's file, and its size. The mapping lives as long as a tensor that views it."""
    try:
        fd = os.open(bucket.path, os.O_RDONLY)
    except FileNotFoundError as error:
        first = bucket.entries[0].name if bucket.entries else "no tensor"
        raise _damaged(bucket, first, "the file is gone") from error
    try:
        size = os.fstat(fd).st_size
        return mmap.mmap(fd, 0, access=mmap.ACCESS_COPY) if size else mmap.mmap(-1, 1), size
    finally:
        os.close(fd)


def bucket_bytes(bucket: Bucket) -> np.ndarray:
    """The bytes of a bucket of this node, [num_bytes] uint8."""
    return np.fromfile(bucket.path, np.uint8)


@contextmanager
def copied_bucket(bucket: Bucket, data: np.ndarray, directory: Path) -> Iterator[Bucket]:
    """A bucket of another node, from its bytes, in a file of this one for as long as the context lasts."""
    path = directory / f"{Path(bucket.path).name}-at-{os.getpid()}"
    try:
        data.tofile(path)
        yield replace(bucket, path=str(path))
    finally:
        path.unlink(missing_ok=True)


def cleanup(prefix: str, directory: str | Path = SHARED_MEMORY) -> int:
    """Remove every bucket file of `prefix`, whoever wrote it. Returns how many there were; calling it again is harmless."""
    paths = list(Path(directory).glob(f"{escape(prefix)}-*"))
    for path in paths:
        path.unlink(missing_ok=True)
    return len(paths)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _checksum(mapping: mmap.mmap, offset: int, num_bytes: int) -> str:
    with memoryview(mapping) as whole, whole[offset : offset + num_bytes] as part:
        return blake3(part).hexdigest()


def _damaged(bucket: Bucket, name: str, why: str) -> RunError:
    return RunError(
        f"weights of version {bucket.version} arrived damaged: tensor {name} in {bucket.path}",
        why,
        "publish the weights again; if it repeats, look for a second run that uses the same shared memory",
    )
