"""Weights through shared memory: whole, checked, and nothing left behind."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tandem.errors import RunError, UserError
from tandem.sync.buckets import (
    ALIGNMENT,
    DTYPES,
    SHARED_MEMORY,
    BucketReader,
    BucketWriter,
    bucket_bytes,
    cleanup,
    copied_bucket,
    is_checked,
)


@pytest.fixture
def prefix():
    name = f"tandem-test-{os.getpid()}"
    yield name
    cleanup(name)


def files(prefix: str) -> list[Path]:
    return sorted(SHARED_MEMORY.glob(f"{prefix}-*"))


def sample_tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    tensors = {f"dtype.{name}": (torch.randn(7, 5) * 50).to(dtype) for name, dtype in DTYPES.items()}
    return tensors | {
        "transposed": torch.randn(6, 9).t(),
        "strided": torch.randn(10, 4)[::3],
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "large": torch.randn(300, 10),  # 12,000 bytes
        "last": torch.arange(11),
    }


def test_every_dtype_shape_and_layout_arrives_bit_for_bit(prefix):
    tensors, seen, reader, pieces = sample_tensors(), {}, BucketReader(), 0
    for bucket in BucketWriter(SHARED_MEMORY, prefix, 1024).write(tensors.items(), version=3):
        assert files(prefix) == [Path(bucket.path)], "one bucket at a time"
        assert bucket.version == 3 and os.path.getsize(bucket.path) <= 1024
        assert all(entry.offset % ALIGNMENT == 0 for entry in bucket.entries)
        seen |= dict(reader.read(bucket))  # kept beyond the bucket's life
        pieces += sum(entry.name == "large" for entry in bucket.entries)
    assert files(prefix) == []
    assert pieces == 12, "12,000 bytes do not fit into 11 buckets of 1024"
    assert list(seen) == list(tensors)
    for name, tensor in tensors.items():
        assert seen[name].dtype == tensor.dtype and seen[name].shape == tensor.shape
        assert torch.equal(seen[name].contiguous().flatten().view(torch.uint8), tensor.contiguous().flatten().view(torch.uint8)), name


def test_released_bucket_is_gone_but_stays_readable_where_it_was_mapped(prefix):
    writer = BucketWriter(SHARED_MEMORY, prefix, 1 << 20)
    buckets = writer.write([("a", torch.arange(5.0))], version=1)
    bucket = next(buckets)
    ((_, tensor),) = BucketReader().read(bucket)
    writer.release(bucket)
    assert files(prefix) == []
    assert tensor.tolist() == [0, 1, 2, 3, 4]
    assert next(buckets, None) is None


def test_abandoned_publication_leaves_no_file(prefix):
    buckets = BucketWriter(SHARED_MEMORY, prefix, 128).write(sample_tensors().items(), version=1)
    next(buckets)
    buckets.close()
    assert files(prefix) == []


def test_failing_source_leaves_no_file(prefix):
    def source():
        yield "a", torch.ones(3)
        raise ValueError("gather failed")

    with pytest.raises(ValueError, match="gather failed"):
        list(BucketWriter(SHARED_MEMORY, prefix, 128).write(source(), version=1))
    assert files(prefix) == []


def test_one_changed_byte_names_tensor_and_file(prefix):
    buckets = BucketWriter(SHARED_MEMORY, prefix, 1 << 20).write([("first", torch.ones(40)), ("second", torch.ones(40))], version=1)
    bucket = next(buckets)
    with open(bucket.path, "r+b") as file:
        file.seek(bucket.entries[1].offset + 17)
        file.write(b"\xff")
    reader = BucketReader().read(bucket)
    assert next(reader)[0] == "first"
    with pytest.raises(RunError) as caught:
        next(reader)
    assert "second" in caught.value.what and bucket.path in caught.value.what
    unchecked = replace(bucket, entries=tuple(replace(entry, checksum="") for entry in bucket.entries))
    assert [name for name, _ in BucketReader().read(unchecked)] == ["first", "second"]


@pytest.mark.parametrize("size", [0, 64, 200])
def test_truncated_file_names_tensor_and_file(prefix, size):
    buckets = BucketWriter(SHARED_MEMORY, prefix, 1 << 20, verify_share=0.0).write([("only", torch.ones(64))], version=1)
    bucket = next(buckets)
    os.truncate(bucket.path, size)
    with pytest.raises(RunError, match="only"):
        list(BucketReader().read(bucket))


def test_missing_file_and_wrong_shape_are_refused(prefix):
    buckets = BucketWriter(SHARED_MEMORY, prefix, 1 << 20).write([("only", torch.ones(64))], version=1)
    bucket = next(buckets)
    with pytest.raises(RunError, match="only"):
        list(BucketReader().read(replace(bucket, entries=(replace(bucket.entries[0], shape=(65,)),))))
    os.unlink(bucket.path)
    with pytest.raises(RunError, match="only"):
        list(BucketReader().read(bucket))


def test_too_little_shared_memory_is_a_message_not_a_bus_error(prefix):
    huge = torch.zeros(1).expand(1 << 44)  # 64 TiB that nobody stores
    with pytest.raises(UserError, match="huge"):
        list(BucketWriter(SHARED_MEMORY, prefix, 1 << 46).write([("small", torch.ones(3)), ("huge", huge)], version=1))
    assert files(prefix) == []


def test_cleanup_removes_what_a_killed_writer_left_and_nothing_else(prefix):
    script = f"""
import torch
from tandem.sync.buckets import BucketWriter
buckets = BucketWriter("/dev/shm", {prefix!r}, 128).write([("a", torch.ones(3))], version=1)
print(next(buckets).path, flush=True)
input()
"""
    writer = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    path = Path(writer.stdout.readline().strip())
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    other = SHARED_MEMORY / f"{prefix}9-1-0"
    other.touch()
    try:
        assert path.exists()
        assert cleanup(prefix) == 1 and cleanup(prefix) == 0
        assert not path.exists() and other.exists()
    finally:
        other.unlink()


@pytest.mark.parametrize("fault", ["dropped", "twice", "swapped"])
def test_a_piece_that_is_not_the_next_one_is_refused_by_name(prefix, fault):
    buckets = []
    for bucket in BucketWriter(SHARED_MEMORY, prefix, 128).write([("cut", torch.arange(100.0))], version=1):
        kept = Path(bucket.path).with_name(f"{prefix}-kept-{len(buckets)}")
        os.link(bucket.path, kept)
        buckets.append(replace(bucket, path=str(kept)))
    assert len(buckets) == 4
    order = {"dropped": [0, 2, 3], "twice": [0, 0, 1, 2, 3], "swapped": [1, 0, 2, 3]}[fault]
    reader = BucketReader()
    with pytest.raises(RunError, match="tensor cut"):
        [tensor for index in order for tensor in reader.read(buckets[index])]
    reader = BucketReader()
    [(_, tensor)] = [tensor for bucket in buckets for tensor in reader.read(bucket)]
    assert torch.equal(tensor, torch.arange(100.0))


def test_the_share_of_tensors_that_are_checked_holds_and_moves_with_the_version():
    names = [f"layers.{i}.weight" for i in range(2000)]
    checked = [{name for name in names if is_checked(name, version, 0.1)} for version in (2, 3)]
    assert all(150 < len(some) < 250 for some in checked) and len(checked[0] & checked[1]) < 50
    assert all(is_checked(name, 1, 1.0) for name in names) and not any(is_checked(name, 1, 0.0) for name in names)


def test_a_bucket_of_another_node_is_read_from_its_bytes_and_leaves_no_file(prefix):
    buckets = BucketWriter(SHARED_MEMORY, prefix, 128).write([("a", torch.arange(5.0))], version=1)
    bucket = next(buckets)
    data = bucket_bytes(bucket)
    os.unlink(bucket.path)
    with copied_bucket(bucket, data, SHARED_MEMORY) as here:
        ((_, tensor),) = BucketReader().read(here)
    assert tensor.tolist() == [0, 1, 2, 3, 4] and files(prefix) == []
