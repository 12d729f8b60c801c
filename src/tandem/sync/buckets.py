"""Weights in shared memory: a writer fills one bucket file at a time, readers map it and check every tensor before they use it."""

import errno
import mmap
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from glob import escape
from math import prod
from pathlib import Path

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
        bucket_bytes: largest bucket. A tensor that is larger gets a bucket of its own size.
    """

    def __init__(self, directory: str | Path, prefix: str, bucket_bytes: int):
        self.directory, self.prefix, self.bucket_bytes = Path(directory), prefix, bucket_bytes
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
                if file is not None and not file.has_room(tensor.nbytes):
                    yield file.seal(version)
                    file.remove()
                    file = None
                if file is None:
                    file = self._new_file(max(self.bucket_bytes, tensor.nbytes))
                file.append(name, tensor)
            if file is not None:
                yield file.seal(version)
        finally:
            if file is not None:
                file.remove()

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

    def append(self, name: str, tensor: Tensor) -> None:
        assert self._map is not None and tensor.dtype in DTYPE_NAMES, f"{name}: a sealed bucket or an unknown dtype {tensor.dtype}"
        offset, num_bytes = _aligned(self.used), tensor.nbytes
        if num_bytes:
            self._claim(name, offset, num_bytes)
            torch.frombuffer(self._map, dtype=tensor.dtype, count=tensor.numel(), offset=offset).view(tensor.shape).copy_(tensor)
        checksum = _checksum(self._map, offset, num_bytes)
        self.entries.append(TensorEntry(name, DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), offset, num_bytes, checksum))
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


def read_bucket(bucket: Bucket, verify: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Yield the bucket's tensors as views of a private mapping: they outlive the file, and writing to them changes nothing for others.

    Args:
        bucket: as a `BucketWriter` made it.
        verify: compare each tensor's checksum with its bytes before it is yielded.

    Raises:
        RunError: the file is missing or shorter than its entries say, or a checksum differs; names the tensor and the file.
    """
    try:
        fd = os.open(bucket.path, os.O_RDONLY)
    except FileNotFoundError as error:
        first = bucket.entries[0].name if bucket.entries else "no tensor"
        raise _damaged(bucket, first, "the file is gone") from error
    try:
        size = os.fstat(fd).st_size
        mapping = mmap.mmap(fd, 0, access=mmap.ACCESS_COPY) if size else mmap.mmap(-1, 1)
    finally:
        os.close(fd)
    for entry in bucket.entries:
        dtype, numel = DTYPES[entry.dtype], prod(entry.shape)
        if entry.num_bytes != numel * dtype.itemsize:
            raise _damaged(bucket, entry.name, f"{entry.num_bytes} bytes cannot be {entry.dtype} of shape {entry.shape}")
        if entry.offset + entry.num_bytes > size:
            raise _damaged(bucket, entry.name, f"it ends at byte {entry.offset + entry.num_bytes} of a file of {size}")
        if verify and _checksum(mapping, entry.offset, entry.num_bytes) != entry.checksum:
            raise _damaged(bucket, entry.name, "its bytes do not have the checksum that the trainer wrote")
        if numel == 0:
            yield entry.name, torch.empty(entry.shape, dtype=dtype)
        else:
            yield entry.name, torch.frombuffer(mapping, dtype=dtype, count=numel, offset=entry.offset).view(entry.shape)


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
