"""Weights in shared memory: a writer fills one bucket at a time in a file that it keeps; readers map it and check before they use it."""

import errno
import itertools
import mmap
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
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
_file_numbers = itertools.count()  # of this process
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class BucketWriter:
    """Writes tensors into a file `<directory>/<prefix>-<pid>-<n>` that it keeps from one publication to the next: making its pages costs
    several times what copying to them does. The file has two halves, so that one is filled while readers use the other.

    Args:
        directory: a folder in memory, usually `SHARED_MEMORY`.
        prefix: starts every file name, so that `cleanup` finds what a killed writer left; unique to a run.
        bucket_bytes: of the file, at least 2 * ALIGNMENT. A tensor that is larger than a half is cut.
    """

    def __init__(self, directory: str | Path, prefix: str, bucket_bytes: int):
        self.directory, self.prefix = Path(directory), prefix
        self.half_bytes = bucket_bytes // 2 // ALIGNMENT * ALIGNMENT
        self._file: _BucketFile | None = None

    def write(self, tensors: Iterable[tuple[str, Tensor]], version: int, verify_share: float = 1.0) -> Iterator[Bucket]:
        """Yield the tensors in buckets, in their order. A bucket's bytes stay until the second bucket after it is asked for.

        Args:
            tensors: Hugging Face names and tensors of any device, dtype and layout; each is read once and not kept.
            version: of the weights, stamped on every bucket.
            verify_share: of the tensors that get a checksum, 0 to 1; which ones changes with the version.

        Raises:
            UserError: the shared memory is too small.
        """
        file = self._file = self._file or _BucketFile(self._new_path(), self.half_bytes)
        file.start_half(0)
        for name, tensor in tensors:
            checked = is_checked(name, version, verify_share)
            for start, part in self._parts(tensor):
                if not file.has_room(part.nbytes):
                    yield file.bucket(version)
                    file.start_half(1 - file.half)
                file.append(name, tensor, start, part, checked)
        if file.entries:
            yield file.bucket(version)

    def _parts(self, tensor: Tensor) -> Iterator[tuple[int, Tensor]]:
        """(first byte, part) of the tensor, none larger than half a file."""
        if tensor.nbytes <= self.half_bytes:
            yield 0, tensor
            return
        size = tensor.element_size()
        for index, part in enumerate(tensor.reshape(-1).split(self.half_bytes // size)):
            yield index * self.half_bytes, part

    def _new_path(self) -> Path:
        return self.directory / f"{self.prefix}-{os.getpid()}-{next(_file_numbers)}"

    def close(self) -> None:
        """Remove the file; readers that have mapped it keep their view."""
        if self._file is not None:
            self._file.remove()
            self._file = None


class _BucketFile:
    """A sparse file of two halves whose pages are claimed when they are first written to."""

    def __init__(self, path: Path, half_bytes: int):
        self.path, self.half_bytes = path, half_bytes
        self.half, self.used = 0, 0
        self.entries: list[TensorEntry] = []
        self._claimed = [0, 0]  # bytes of each half
        self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        os.ftruncate(self._fd, 2 * half_bytes)
        self._map = mmap.mmap(self._fd, 2 * half_bytes)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def start_half(self, half: int) -> None:
        self.half, self.used, self.entries = half, 0, []

    def has_room(self, num_bytes: int) -> bool:
        return _aligned(self.used) + num_bytes <= self.half_bytes

    def append(self, name: str, whole: Tensor, start: int, part: Tensor, checked: bool) -> None:
        """Add `part` of the tensor `whole`, which begins at its byte `start`."""
        assert part.dtype in DTYPE_NAMES, f"{name}: an unknown dtype {part.dtype}"
        begin, num_bytes = _aligned(self.used), part.nbytes
        offset = self.half * self.half_bytes + begin
        if num_bytes:
            self._claim(name, begin + num_bytes)
            self._bytes[offset : offset + num_bytes].view(part.dtype).view(part.shape).copy_(part)
        checksum = _checksum(self._map, offset, num_bytes) if checked else ""
        is_last = start + num_bytes == whole.nbytes
        dtype, shape = DTYPE_NAMES[part.dtype], tuple(whole.shape)
        self.entries.append(TensorEntry(name, dtype, shape, offset, num_bytes, checksum, start, is_last))
        self.used = begin + num_bytes

    def _claim(self, name: str, end: int) -> None:
        """Have pages up to the byte `end` of this half: writing where the file system has none left kills the process with SIGBUS."""
        claimed = self._claimed[self.half]
        if end <= claimed:
            return
        try:
            os.posix_fallocate(self._fd, self.half * self.half_bytes + claimed, end - claimed)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise UserError(
                f"{self.path.parent} is full: no room for the {end - claimed} bytes of {name}",
                "weights reach the generator through shared memory, one bucket at a time",
                "enlarge the shared memory (docker: --shm-size), or lower sync.bucket_bytes",
            ) from error
        self._claimed[self.half] = end

    def bucket(self, version: int) -> Bucket:
        return Bucket(str(self.path), version, tuple(self.entries))

    def remove(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self.path.unlink(missing_ok=True)


def is_checked(name: str, version: int, share: float) -> bool:
    """Whether this tensor's checksum is compared in the publication of `version`: a share of the names, others each time."""
    drawn = int.from_bytes(blake3(f"{version} {name}".encode()).digest(length=4), "little")
    return drawn < share * 2**32


class BucketReader:
    """Reads buckets and puts tensors together that came in pieces. A file stays mapped as long as it is there: writers use it again."""

    def __init__(self) -> None:
        self._mappings: dict[str, _Mapping] = {}
        self._unfinished: dict[str, tuple[Tensor, int]] = {}  # bytes, how many of them are there

    def restart(self) -> None:
        """Forget what came of a publication before, and files that are gone."""
        self._unfinished.clear()
        self._mappings = {path: mapping for path, mapping in self._mappings.items() if os.path.exists(path)}

    def read(self, bucket: Bucket, verify: slice = slice(None)) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that this bucket completes. Most are views of its bytes: read only, until the writer uses them again.

        Args:
            verify: which of the entries' checksums are compared, before the first tensor is yielded; all those that have one.

        Raises:
            RunError: the file is missing or shorter than its entries say, a checksum differs, or a piece is not the next one; names the
                tensor and the file.
        """
        mapping = self._mapped(bucket)
        for entry in bucket.entries:
            whole = prod(entry.shape) * DTYPES[entry.dtype].itemsize
            if entry.start + entry.num_bytes > whole or (entry.is_last and entry.start + entry.num_bytes != whole):
                raise _damaged(bucket, entry.name, f"{entry.num_bytes} bytes cannot be {entry.dtype} of shape {entry.shape}")
            if entry.offset + entry.num_bytes > mapping.size:
                raise _damaged(bucket, entry.name, f"it ends at byte {entry.offset + entry.num_bytes} of a file of {mapping.size}")
        for entry in bucket.entries[verify]:
            if entry.checksum and _checksum(mapping.map, entry.offset, entry.num_bytes) != entry.checksum:
                raise _damaged(bucket, entry.name, "its bytes do not have the checksum that the trainer wrote")
        for entry in bucket.entries:
            data = mapping.bytes[entry.offset : entry.offset + entry.num_bytes]
            if not (entry.is_last and entry.start == 0):
                data = self._add_piece(bucket, entry, data)
            if data is not None:
                yield entry.name, data.view(DTYPES[entry.dtype]).view(entry.shape)

    def _add_piece(self, bucket: Bucket, entry: TensorEntry, data: Tensor) -> Tensor | None:
        """The tensor's bytes when this was its last piece."""
        whole = prod(entry.shape) * DTYPES[entry.dtype].itemsize
        tensor, there = self._unfinished.pop(entry.name, None) or (torch.empty(whole, dtype=torch.uint8), 0)
        if there != entry.start:
            raise _damaged(bucket, entry.name, f"its piece from byte {entry.start} came after {there} bytes")
        tensor[there : there + entry.num_bytes] = data
        if entry.is_last:
            return tensor
        self._unfinished[entry.name] = tensor, there + entry.num_bytes
        return None

    def _mapped(self, bucket: Bucket) -> "_Mapping":
        try:
            found = os.stat(bucket.path)
        except FileNotFoundError as error:
            first = bucket.entries[0].name if bucket.entries else "no tensor"
            raise _damaged(bucket, first, "the file is gone") from error
        mapping = self._mappings.get(bucket.path)
        if mapping is None or (mapping.inode, mapping.size) != (found.st_ino, found.st_size):
            mapping = self._mappings[bucket.path] = _Mapping(bucket.path)
        return mapping


class _Mapping:
    """A file as read-only bytes."""

    def __init__(self, path: str):
        fd = os.open(path, os.O_RDONLY)
        try:
            found = os.fstat(fd)
            self.inode, self.size = found.st_ino, found.st_size
            self.map = mmap.mmap(fd, 0, access=mmap.ACCESS_READ) if self.size else mmap.mmap(-1, 1)
        finally:
            os.close(fd)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable")  # and nobody writes
            self.bytes = torch.frombuffer(self.map, dtype=torch.uint8)[: self.size]


def bucket_bytes(bucket: Bucket) -> np.ndarray:
    """The bytes of a bucket of this node, from its first entry to its last, [num_bytes] uint8."""
    begin, end = _span(bucket)
    return np.fromfile(bucket.path, np.uint8, count=end - begin, offset=begin)


@contextmanager
def copied_bucket(bucket: Bucket, data: np.ndarray, directory: Path) -> Iterator[Bucket]:
    """A bucket of another node, from its bytes, in a file of this one for as long as the context lasts."""
    path = directory / f"{Path(bucket.path).name}-at-{os.getpid()}"
    try:
        with open(path, "wb") as file:
            file.seek(_span(bucket)[0])
            file.write(data.data)
        yield replace(bucket, path=str(path))
    finally:
        path.unlink(missing_ok=True)


def _span(bucket: Bucket) -> tuple[int, int]:
    return bucket.entries[0].offset, max(entry.offset + entry.num_bytes for entry in bucket.entries)


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
