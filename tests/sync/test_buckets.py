"""Weights through shared memory: whole, checked, and nothing left behind."""

import os
import shutil
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
    BucketReader,
    BucketWriter,
    copied_bucket,
    file_bytes,
    is_checked,
)
from tandem.sync.memory import shared_files
from tandem.sync.shared_memory import SHARED_MEMORY, cleanup


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


def test_every_dtype_shape_and_layout_arrives_bit_for_bit_in_every_publication(prefix):
    tensors, reader, writer, names = sample_tensors(), BucketReader(), BucketWriter(shared_files(SHARED_MEMORY, prefix), 1024), set()
    for version in (3, 4):
        seen, pieces = {}, 0
        reader.restart()
        for bucket in writer.write(tensors.items(), version):
            assert files(prefix) == [Path(bucket.path)] and os.path.getsize(bucket.path) <= 1024, "one file, of the asked size"
            assert bucket.version == version
            assert all(entry.offset % ALIGNMENT == 0 for entry in bucket.entries)
            seen |= {name: tensor.clone() for name, tensor in reader.read(bucket)}
            pieces += sum(entry.name == "large" for entry in bucket.entries)
            names.add(bucket.path)
        assert pieces == 24, "12,000 bytes do not fit into 23 halves of 512"
        assert list(seen) == list(tensors)
        for name, tensor in tensors.items():
            assert seen[name].dtype == tensor.dtype and seen[name].shape == tensor.shape
            assert torch.equal(seen[name].contiguous().flatten().view(torch.uint8), tensor.contiguous().flatten().view(torch.uint8)), name
    assert len(names) == 1, "pages are made once, not for every publication"
    writer.close()
    assert files(prefix) == []


def test_a_bucket_is_readable_while_the_next_one_is_filled_and_not_after(prefix):
    buckets = BucketWriter(shared_files(SHARED_MEMORY, prefix), 128).write(
        [(f"{i}", torch.full((16,), float(i))) for i in range(3)], version=1
    )
    reader, first = BucketReader(), next(buckets)
    ((_, tensor),) = reader.read(first)
    next(buckets)
    assert tensor.unique().tolist() == [0.0]
    next(buckets)
    assert tensor.unique().tolist() == [2.0]
    with pytest.raises(RunError, match="tensor 0"):
        list(reader.read(first))


def test_closed_writer_leaves_no_file_and_what_was_mapped_stays(prefix):
    writer = BucketWriter(shared_files(SHARED_MEMORY, prefix), 1 << 20)
    ((_, tensor),) = BucketReader().read(next(writer.write([("a", torch.arange(5.0))], version=1)))
    writer.close()
    writer.close()
    assert files(prefix) == []
    assert tensor.tolist() == [0, 1, 2, 3, 4]


def test_a_reader_lets_go_of_files_that_are_gone_and_follows_a_new_one_of_the_same_name(prefix):
    reader, path = BucketReader(), SHARED_MEMORY / f"{prefix}-same"
    for value in (1.0, 2.0):
        writer = BucketWriter(shared_files(SHARED_MEMORY, prefix), 128)
        bucket = next(writer.write([("a", torch.full((4,), value))], version=1))
        os.replace(bucket.path, path)
        ((_, tensor),) = reader.read(replace(bucket, path=str(path)))
        assert tensor.tolist() == [value] * 4
    os.unlink(path)
    reader.restart()
    assert not reader._files


def test_a_source_that_fails_or_is_left_does_not_disturb_the_next_publication(prefix):
    def source():
        yield "a", torch.ones(30)
        raise ValueError("gather failed")

    writer, reader = BucketWriter(shared_files(SHARED_MEMORY, prefix), 128), BucketReader()
    with pytest.raises(ValueError, match="gather failed"):
        list(writer.write(source(), version=1))
    next(writer.write(sample_tensors().items(), version=2))
    seen = {name: tensor.clone() for bucket in writer.write([("b", torch.arange(50))], version=3) for name, tensor in reader.read(bucket)}
    assert seen["b"].tolist() == list(range(50))
    writer.close()
    assert files(prefix) == []


def test_one_changed_byte_names_tensor_and_file(prefix):
    buckets = BucketWriter(shared_files(SHARED_MEMORY, prefix), 1 << 20).write(
        [("first", torch.ones(40)), ("second", torch.ones(40))], version=1
    )
    bucket = next(buckets)
    with open(bucket.path, "r+b") as file:
        file.seek(bucket.entries[1].offset + 17)
        file.write(b"\xff")
    with pytest.raises(RunError) as caught:
        next(BucketReader().read(bucket))
    assert [name for name, _ in BucketReader().read(bucket, slice(0, None, 2))] == ["first", "second"], "another worker's to check"
    with pytest.raises(RunError):
        next(BucketReader().read(bucket, slice(1, None, 2)))
    assert "second" in caught.value.what and bucket.path in caught.value.what
    unchecked = replace(bucket, entries=tuple(replace(entry, checksum="") for entry in bucket.entries))
    assert [name for name, _ in BucketReader().read(unchecked)] == ["first", "second"]


@pytest.mark.parametrize("size", [0, 64, 200])
def test_truncated_file_names_tensor_and_file(prefix, size):
    buckets = BucketWriter(shared_files(SHARED_MEMORY, prefix), 1 << 20).write([("only", torch.ones(64))], version=1, verify_share=0.0)
    bucket = next(buckets)
    os.truncate(bucket.path, size)
    with pytest.raises(RunError, match="only"):
        list(BucketReader().read(bucket))


def test_missing_file_and_wrong_shape_are_refused(prefix):
    buckets = BucketWriter(shared_files(SHARED_MEMORY, prefix), 1 << 20).write([("only", torch.ones(64))], version=1)
    bucket = next(buckets)
    with pytest.raises(RunError, match="only"):
        list(BucketReader().read(replace(bucket, entries=(replace(bucket.entries[0], shape=(65,)),))))
    os.unlink(bucket.path)
    with pytest.raises(RunError, match="only"):
        list(BucketReader().read(bucket))


def test_too_little_shared_memory_is_a_message_not_a_bus_error(prefix):
    huge = torch.zeros(1).expand(1 << 42)  # 16 TiB that nobody stores
    with pytest.raises(UserError, match="huge"):
        list(BucketWriter(shared_files(SHARED_MEMORY, prefix), 1 << 45).write([("small", torch.ones(3)), ("huge", huge)], version=1))


def test_cleanup_removes_what_a_killed_writer_left_and_nothing_else(prefix):
    script = f"""
import torch
from tandem.sync.buckets import BucketWriter
from tandem.sync.memory import shared_files
buckets = BucketWriter(shared_files("/dev/shm", {prefix!r}), 128).write([("a", torch.ones(3))], version=1)
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
    for bucket in BucketWriter(shared_files(SHARED_MEMORY, prefix), 256).write([("cut", torch.arange(100.0))], version=1):
        kept = Path(bucket.path).with_name(f"{prefix}-kept-{len(buckets)}")
        shutil.copy(bucket.path, kept)
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
    buckets = BucketWriter(shared_files(SHARED_MEMORY, prefix), 128).write([("a", torch.arange(5.0)), ("b", torch.arange(40.0))], version=1)
    reader, seen = BucketReader(), {}
    for bucket in buckets:
        data, there = file_bytes(bucket), files(prefix)
        assert data.nbytes <= 64
        with copied_bucket(bucket, data, SHARED_MEMORY, prefix) as here:
            assert here.path != bucket.path
            seen |= {name: tensor.tolist() for name, tensor in reader.read(here)}
        assert files(prefix) == there
    assert seen == {"a": [0, 1, 2, 3, 4], "b": list(range(40))}
