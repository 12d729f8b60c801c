"""In which order a publication asks a training rank, which answers one call after the other."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from types import SimpleNamespace

import pytest
from ray.exceptions import GetTimeoutError, RayTaskError

from tandem.actors import generator_group
from tandem.actors.generator_group import Replica
from tandem.run import publish as module
from tandem.sync.types import Bucket, TensorEntry


class Rank:
    """Three buckets; remembers what it was asked."""

    def __init__(self, sender: int = -1):
        self._sender = sender
        self.asked: list[str] = []
        self.next_bucket = SimpleNamespace(remote=self._next)
        self.bucket_bytes = SimpleNamespace(remote=lambda bucket: self.asked.append(f"bytes of {bucket.entries[0].name}") or "data")
        self.send = SimpleNamespace(remote=lambda engine, bucket: self.asked.append(f"send {bucket.entries[0].name} to {engine}"))
        self.join = SimpleNamespace(remote=lambda engine, meeting: self.asked.append(f"join {engine} in {meeting}"))
        self._num = 0

    def _next(self, *args):
        self.asked.append("next")
        self._num += 1
        if self._num > 3:
            return (self._num, None)
        entries = (TensorEntry(f"t{self._num}", "F32", (1,), 0, 4, "", 0, True),)
        return (self._num, Bucket(1, entries, path="/dev/shm/x") if self._sender < 0 else Bucket(1, entries, sender=self._sender))


def published(rank: Rank, replica, transport: str, monkeypatch):
    """The publication, and the engine's calls."""
    heard = []
    call = lambda name: SimpleNamespace(remote=lambda *args: heard.append((name, args)))  # noqa: E731
    replica.actor = SimpleNamespace(begin_update=call("begin"), load_bucket=call("load"), finish_update=call("finish"), join=call("join"))
    monkeypatch.setattr(module.ray, "wait", lambda futures, **_: (futures[:1], futures[1:]))
    monkeypatch.setattr(module, "wait", lambda futures, *_: [futures[0] and futures[0][1]])
    monkeypatch.setattr(module, "answers", lambda calls, *_: {key: {"load_seconds": 0.0, "pack_seconds": 0.0} for key in calls})
    config = SimpleNamespace(sync=SimpleNamespace(transport=transport))
    trainers = SimpleNamespace(ranks=[rank], nodes=["here"], timeout_s=1.0, config=config, meeting=lambda name, timeout_s: name)
    return module.publish(trainers, [replica], 1, "x", verify_share=0.0, timeout_s=1.0), heard


def engine(node: str):
    return type("Replica", (), {"node": node, "version": 0, "index": 5, "is_linked": False, "num_links": 0})()


@pytest.mark.parametrize(("node", "elsewhere"), [("here", False), ("there", True)])
def test_a_bucket_s_bytes_are_asked_for_before_the_next_bucket(node: str, elsewhere: bool, monkeypatch) -> None:
    """The next one may need ranks in a gather that are asked only once this bucket is loaded: bytes behind it would never come."""
    rank = Rank()
    done, heard = published(rank, engine(node), "shared_memory", monkeypatch)
    assert done.names == ["t1", "t2", "t3"]
    each = ["bytes of t{}", "next"] if elsewhere else ["next"]
    assert rank.asked == ["next", *(call.format(n) for n in (1, 2, 3) for call in each)]
    assert [args[1] for name, args in heard if name == "load"] == ["data" if elsewhere else None] * 3


def test_a_rank_joins_an_engine_once_and_sends_a_bucket_before_it_makes_the_next(monkeypatch) -> None:
    replica = engine("there")
    for first in (True, False):
        rank = Rank(sender=0)
        _, heard = published(rank, replica, "collective", monkeypatch)
        joins = ["join 5 in engine5.1"] if first else []
        assert rank.asked == [*joins, "next", *(call for n in (1, 2, 3) for call in (f"send t{n} to 5", "next"))]
        assert [name for name, _ in heard] == ["join"] * first + ["begin"] + ["load"] * 3 + ["finish"]


class OneAfterTheOther:
    """A rank whose calls run in its own thread, in their order, and engines that load what was sent to them. Answers are futures."""

    def __init__(self, stuck: int, send_seconds: float):
        self.pool, self.arrived = ThreadPoolExecutor(1), {index: threading.Event() for index in range(3)}
        self.stuck, self.send_seconds = stuck, send_seconds
        self.send = SimpleNamespace(remote=lambda index, bucket: self.pool.submit(self._send, index))

    def _send(self, index: int) -> None:
        time.sleep(self.send_seconds)
        if index == self.stuck:
            raise RuntimeError("Timed out waiting for send operation to complete")
        self.arrived[index].set()

    def engine(self, index: int) -> Replica:
        def load_bucket(bucket, data) -> Future:
            future: Future = Future()
            threading.Thread(target=lambda: self.arrived[index].wait() and future.set_result(None), daemon=True).start()
            return future

        return Replica(index, lambda: SimpleNamespace(load_bucket=SimpleNamespace(remote=load_bucket)), lambda actor: None)


def got(future: Future, timeout: float):
    """As `ray.get`."""
    try:
        return future.result(timeout)
    except FutureTimeout as error:
        raise GetTimeoutError from error
    except RuntimeError as error:
        raise RayTaskError("send", f"trace\n{error}", error) from error


def test_an_engine_that_does_not_take_what_a_rank_sends_is_the_only_one_that_fails(monkeypatch) -> None:
    """The others wait behind it in the rank's queue for as long as they may take themselves: one that hung made all of them fail."""
    limit = 0.5
    rank = OneAfterTheOther(stuck=0, send_seconds=limit)
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(generator_group.ray, "get", got)
    engines = [rank.engine(index) for index in range(3)]
    tell = module.Audience(list(engines), failed := {}, limit)
    bucket = Bucket(1, (TensorEntry("t", "F32", (1,), 0, 4, "", 0, True),), sender=0)
    for one in engines:
        one.is_linked = True
    tell.load(bucket, "here", tell.forward(rank, bucket, "here"))
    assert list(failed) == engines[:1] and failed[engines[0]].lost
    assert tell.replicas == engines[1:] and [one.is_linked for one in engines] == [False, True, True]
