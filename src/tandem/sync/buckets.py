"""Weights on their way to generators: a writer fills one half of its memory at a time; readers check the bytes before they use them."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from tandem.errors import RunError
from tandem.sync.memory import Memory, mapped
from tandem.sync.types import Bucket, TensorEntry

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
    """Copies tensors into memory that it keeps from one publication to the next. It has two halves, so that one is filled while readers
    use the other.

    Args:
        make: of (num_bytes, half_bytes) makes the memory, when it is first needed.
        bucket_bytes: of the memory, at least 2 * ALIGNMENT. A tensor that is larger than a half is cut.
    """

    def __init__(self, make: Callable[[int, int], Memory], bucket_bytes: int):
        self.half_bytes = bucket_bytes // 2 // ALIGNMENT * ALIGNMENT
        self._make = make
        self.memory: Memory | None = None

    def write(self, tensors: Iterable[tuple[str, Tensor]], version: int, verify_share: float = 1.0) -> Iterator[Bucket]:
        """Yield the tensors in buckets, in their order. A bucket's bytes stay until the second bucket after it is asked for.

        Args:
            tensors: Hugging Face names and tensors of any device, dtype and layout; each is read once and not kept.
            version: of the weights, stamped on every bucket.
            verify_share: of the tensors that get a checksum, 0 to 1; which ones changes with the version.

        Raises:
            UserError: the shared memory is too small.
        """
        self.memory = self.memory or self._make(2 * self.half_bytes, self.half_bytes)
        half = _Half(self.memory, 0, self.half_bytes)
        for name, tensor in tensors:
            checked = is_checked(name, version, verify_share)
            for start, part in self._parts(tensor):
                if not half.has_room(part.nbytes):
                    yield half.bucket(version)
                    half = half.other()
                half.append(name, tensor, start, part, checked)
        if half.entries:
            yield half.bucket(version)

    def _parts(self, tensor: Tensor) -> Iterator[tuple[int, Tensor]]:
        """(first byte, part) of the tensor, none larger than half the memory."""
        if tensor.nbytes <= self.half_bytes:
            yield 0, tensor
            return
        size = tensor.element_size()
        for index, part in enumerate(tensor.reshape(-1).split(self.half_bytes // size)):
            yield index * self.half_bytes, part

    def close(self) -> None:
        if self.memory is not None:
            self.memory.close()
            self.memory = None


class _Half:
    """One half of the memory, while it is filled."""

    def __init__(self, memory: Memory, begin: int, num_bytes: int):
        self.memory, self.begin, self.num_bytes = memory, begin, num_bytes
        self.used = 0
        self.entries: list[TensorEntry] = []

    def other(self) -> "_Half":
        return _Half(self.memory, self.num_bytes - self.begin, self.num_bytes)

    def has_room(self, num_bytes: int) -> bool:
        return _aligned(self.used) + num_bytes <= self.num_bytes

    def append(self, name: str, whole: Tensor, start: int, part: Tensor, checked: bool) -> None:
        """Add `part` of the tensor `whole`, which begins at its byte `start`."""
        assert part.dtype in DTYPE_NAMES, f"{name}: an unknown dtype {part.dtype}"
        num_bytes = part.nbytes
        offset = self.begin + _aligned(self.used)
        if num_bytes:
            self.memory.claim(offset, offset + num_bytes, name)
            self.memory.bytes[offset : offset + num_bytes].view(part.dtype).view(part.shape).copy_(part)
        checksum = _checksum(self.memory.bytes[offset : offset + num_bytes]) if checked else ""
        is_last = start + num_bytes == whole.nbytes
        dtype, shape = DTYPE_NAMES[part.dtype], tuple(whole.shape)
        self.entries.append(TensorEntry(name, dtype, shape, offset, num_bytes, checksum, start, is_last))
        self.used = offset - self.begin + num_bytes

    def bucket(self, version: int) -> Bucket:
        self.memory.complete()
        return Bucket(version=version, entries=tuple(self.entries), **self.memory.where)


def is_checked(name: str, version: int, share: float) -> bool:
    """Whether this tensor's checksum is compared in the publication of `version`: a share of the names, others each time."""
    drawn = int.from_bytes(blake3(f"{version} {name}".encode()).digest(length=4), "little")
    return drawn < share * 2**32


class BucketReader:
    """Reads buckets and puts tensors together that came in pieces. Memory stays open as long as it is there: writers use it again.

    Args:
        open_handle: makes device memory of another process, [num_bytes] uint8, from its handle.
    """

    def __init__(self, open_handle: Callable[[bytes], Tensor] | None = None) -> None:
        self._open_handle = open_handle
        self._files: dict[str, tuple[int, Tensor]] = {}  # inode, bytes
        self._devices: dict[bytes, Tensor] = {}
        self._unfinished: dict[str, tuple[Tensor, int]] = {}  # bytes, how many of them are there

    def restart(self) -> None:
        """Forget what came of a publication before, and files that are gone."""
        self._unfinished.clear()
        self._files = {path: opened for path, opened in self._files.items() if os.path.exists(path)}

    def read(self, bucket: Bucket, verify: slice = slice(None), *, sent: Tensor | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that this bucket completes. Most are views of its bytes: read only, until the writer uses them again.

        Args:
            verify: which of the entries' checksums are compared, before the first tensor is yielded; all those that have one.
            sent: the bytes from its first entry to its last, when they came by themselves.

        Raises:
            RunError: the file is missing or shorter than its entries say, a checksum differs, or a piece is not the next one; names the
                tensor and the file.
        """
        memory, first = (self._opened(bucket), 0) if sent is None else (sent, span(bucket)[0])
        part = lambda entry: memory[entry.offset - first : entry.offset - first + entry.num_bytes]  # noqa: E731
        for entry in bucket.entries:
            whole = prod(entry.shape) * DTYPES[entry.dtype].itemsize
            if entry.start + entry.num_bytes > whole or (entry.is_last and entry.start + entry.num_bytes != whole):
                raise _damaged(bucket, entry.name, f"{entry.num_bytes} bytes cannot be {entry.dtype} of shape {entry.shape}")
            if entry.offset - first + entry.num_bytes > len(memory):
                raise _damaged(bucket, entry.name, f"it ends at byte {entry.offset - first + entry.num_bytes} of {len(memory)}")
        for entry in bucket.entries[verify]:
            if entry.checksum and _checksum(part(entry)) != entry.checksum:
                raise _damaged(bucket, entry.name, "its bytes do not have the checksum that the trainer wrote")
        for entry in bucket.entries:
            data: Tensor | None = part(entry)
            if not (entry.is_last and entry.start == 0):
                data = self._add_piece(bucket, entry, part(entry))
            if data is not None:
                yield entry.name, data.view(DTYPES[entry.dtype]).view(entry.shape)

    def _add_piece(self, bucket: Bucket, entry: TensorEntry, data: Tensor) -> Tensor | None:
        """The tensor's bytes when this was its last piece."""
        whole = prod(entry.shape) * DTYPES[entry.dtype].itemsize
        tensor, there = self._unfinished.pop(entry.name, None) or (torch.empty(whole, dtype=torch.uint8, device=data.device), 0)
        if there != entry.start:
            raise _damaged(bucket, entry.name, f"its piece from byte {entry.start} came after {there} bytes")
        tensor[there : there + entry.num_bytes] = data
        if entry.is_last:
            return tensor
        self._unfinished[entry.name] = tensor, there + entry.num_bytes
        return None

    def _opened(self, bucket: Bucket) -> Tensor:
        if bucket.handle:
            assert self._open_handle is not None, "nobody here opens device memory"
            if bucket.handle not in self._devices:
                self._devices[bucket.handle] = self._open_handle(bucket.handle)
            return self._devices[bucket.handle]
        try:
            found = os.stat(bucket.path)
            inode, data = self._files.get(bucket.path, (-1, torch.empty(0)))
            if (inode, len(data)) != (found.st_ino, found.st_size):
                self._files[bucket.path] = mapped(bucket.path)
        except FileNotFoundError as error:
            raise _damaged(bucket, bucket.entries[0].name if bucket.entries else "no tensor", "the file is gone") from error
        return self._files[bucket.path][1]


def span(bucket: Bucket) -> tuple[int, int]:
    """Where its first entry begins and its last ends, in the memory that it is a part of."""
    return bucket.entries[0].offset, max(entry.offset + entry.num_bytes for entry in bucket.entries)


def file_bytes(bucket: Bucket) -> np.ndarray:
    """The bytes of a bucket that lies in a file of this node, from its first entry to its last, [num_bytes] uint8."""
    begin, end = span(bucket)
    return np.fromfile(bucket.path, np.uint8, count=end - begin, offset=begin)


@contextmanager
def copied_bucket(bucket: Bucket, data: np.ndarray, directory: Path, prefix: str) -> Iterator[Bucket]:
    """A bucket of another node, from its bytes, in a file `<prefix>-<pid>-copy` of this one for as long as the context lasts."""
    path = directory / f"{prefix}-{os.getpid()}-copy"
    try:
        with open(path, "wb") as file:
            file.seek(span(bucket)[0])
            file.write(data.data)
        yield replace(bucket, path=str(path), handle=b"")
    finally:
        path.unlink(missing_ok=True)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _checksum(data: Tensor) -> str:
    """Args: data: [num_bytes] uint8, of any device."""
    return blake3(data.cpu().numpy()).hexdigest()


def _damaged(bucket: Bucket, name: str, why: str) -> RunError:
    return RunError(
        f"weights of version {bucket.version} arrived damaged: tensor {name} in {bucket.path or 'device memory'}",
        why,
        "publish the weights again; if it repeats, look for a second run that uses the same shared memory",
    )
