"""Weights from device memory: opened by another process, or sent to it."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import TCPStore

from tandem.devices import cpu, cuda, handles, npu
from tandem.errors import RunError
from tandem.sync.buckets import BucketReader, BucketWriter, span
from tandem.sync.link import Link
from tandem.sync.memory import DeviceMemory
from tandem.sync.types import Meeting

READ_WHAT_IS_SHARED = """
import pickle
import sys
from functools import partial
from tandem.devices import cpu
from tandem.devices.handles import open_shared
from tandem.sync.buckets import BucketReader
reader = BucketReader(partial(open_shared, cpu))
while True:
    bucket = pickle.load(sys.stdin.buffer)
    answer = {name: (list(tensor.shape), tensor.double().sum().item()) for name, tensor in reader.read(bucket)}
    sys.stdout.buffer.write(pickle.dumps(answer))
    sys.stdout.buffer.flush()
"""


def tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"{seed}.{i}": torch.randn(i + 1, 37, generator=generator).to(dtype) for i, dtype in enumerate([torch.float32, torch.bfloat16] * 6)
    }


def device_writer(where, bucket_bytes: int) -> BucketWriter:
    return BucketWriter(lambda num_bytes, _: DeviceMemory(num_bytes, cpu, where), bucket_bytes)


def test_another_process_reads_every_bucket_of_device_memory_by_its_handle():
    import pickle

    sent, writer, seen, num_buckets = tensors(1), device_writer(lambda data: {"handle": handles.share(cpu, data)}, 4096), {}, 0
    with subprocess.Popen([sys.executable, "-c", READ_WHAT_IS_SHARED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdin and reader.stdout
        for version in (1, 2):
            for bucket in writer.write(sent.items(), version):
                assert bucket.handle and not bucket.path
                pickle.dump(bucket, reader.stdin)
                reader.stdin.flush()
                seen |= pickle.load(reader.stdout)
                num_buckets += 1
        reader.kill()
    assert num_buckets > 4, "the memory was used again and again"
    assert seen == {name: (list(tensor.shape), tensor.double().sum().item()) for name, tensor in sent.items()}
    writer.close()


@pytest.fixture
def meeting():
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield Meeting("127.0.0.1", store.port, "engine0.1", 2, timeout_s=5.0)


def joined(meeting: Meeting) -> list[Link]:
    """Of the two trainers and the engine."""
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(lambda rank: Link(cpu, meeting, rank), [0, 1, None]))


def test_what_each_rank_sends_arrives_bit_for_bit(meeting):
    *trainers, engine = joined(meeting)
    reader, seen = BucketReader(), {}
    with ThreadPoolExecutor(1) as pool:
        for rank, link in enumerate(trainers):
            writer = device_writer(lambda data, rank=rank: {"sender": rank}, 1024)
            for bucket in writer.write(tensors(rank).items(), version=7):
                begin, end = span(bucket)
                sending = pool.submit(link.send, writer.memory.bytes[begin:end])
                seen |= {name: t.clone() for name, t in reader.read(bucket, sent=engine.receive(end - begin, bucket.sender))}
                sending.result()
    expected = tensors(0) | tensors(1)
    assert seen.keys() == expected.keys() and all(torch.equal(seen[name], expected[name]) for name in expected)


def test_bytes_that_change_on_the_way_are_refused_by_name(meeting):
    writer = device_writer(lambda data: {"sender": 0}, 1 << 16)
    bucket = next(writer.write(tensors(0).items(), version=1))
    begin, end = span(bucket)
    sent = writer.memory.bytes[begin:end].clone()
    sent[bucket.entries[3].offset - begin + 5] ^= 1
    with pytest.raises(RunError, match=rf"arrived damaged: tensor {bucket.entries[3].name} in device memory"):
        list(BucketReader().read(bucket, sent=sent))


def test_a_send_to_an_engine_that_is_gone_ends_in_an_error_and_another_group_works(meeting):
    first, _, engine = joined(meeting)
    del engine
    with pytest.raises(RuntimeError):
        first.send(torch.ones(1 << 24, dtype=torch.uint8))
    again = Meeting(meeting.address, meeting.port, "engine0.2", 2, meeting.timeout_s)
    first, _, engine = joined(again)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(first.send, torch.arange(9, dtype=torch.uint8))
        assert engine.receive(9, 0).tolist() == list(range(9))
        sending.result()


@pytest.fixture
def rebuilt(monkeypatch):
    """The device number that each tensor was rebuilt with."""
    numbers: list[int] = []
    reduced = (numbers_of, tuple(range(12)))
    monkeypatch.setattr(handles.reductions, "reduce_tensor", lambda data: reduced)
    monkeypatch.setattr(sys.modules[__name__], "NUMBERS", numbers)
    return numbers


NUMBERS: list[int] = []


def numbers_of(*arguments):
    NUMBERS.append(arguments[6])


def test_a_gpu_s_memory_is_opened_as_the_owner_s_device(rebuilt, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    handle = handles.share(cuda, SimpleNamespace(device=torch.device("cuda", 0)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 6,3")
    handles.open_shared(cuda, handle)
    assert rebuilt == [2]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    handles.open_shared(cuda, handle)
    assert rebuilt == [2, 3], "where all are visible, by the machine's own number"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    with pytest.raises(RunError, match="GPU 3 cannot be opened: visible here are 5, 6"):
        handles.open_shared(cuda, handle)


def test_an_npu_s_memory_is_mapped_into_the_reader_s_device(rebuilt, monkeypatch):
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "3")
    handle = handles.share(npu, SimpleNamespace(device=torch.device("cpu")))
    monkeypatch.setattr(torch, "npu", SimpleNamespace(current_device=lambda: 1), raising=False)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "5,6")
    handles.open_shared(npu, handle)
    assert rebuilt == [1]
