"""Carry the trainer's weights to generators: named, checksummed, versioned, one bucket at a time from each rank.

A rank fills one half of its bucket file while the engines read the other, so that shared memory holds one bucket a rank at most. Ranks that
only take part in a gather answer when the gathering rank has finished. An engine that fails is left out of the rest; the others get all.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import ray

from tandem.run.generators import EngineFailure, Replica, answers
from tandem.run.groups import TrainGroup, wait
from tandem.sync.types import Bucket

DURING = "a publication"


@dataclass
class Publication:
    version: int
    names: list[str] = field(default_factory=list)  # tensors, in the order they travelled
    num_bytes: int = 0
    num_checksums: int = 0  # tensors whose bytes were compared after they had arrived
    seconds: float = 0.0
    wait_seconds: float = 0.0  # of them with no bucket from any trainer
    load_seconds: float = 0.0  # of them in an engine's workers, the slowest engine's first one
    pack_seconds: float = 0.0  # of those in vLLM's packing of weights for its kernels
    canary_abs_diff: float | None = None  # None: no canary was asked for
    failed: dict[Replica, EngineFailure] = field(default_factory=dict)


def publish(
    trainers: TrainGroup, replicas: list[Replica], version: int, prefix: str, *, verify_share: float, timeout_s: float
) -> Publication:
    """Bring `replicas` to the trainers' present weights; those that took all of them have `version`.

    Args:
        prefix: of bucket files, unique to the run.
        verify_share: of the tensors whose checksums are compared, 0 to 1.
        timeout_s: an engine that takes longer for one bucket has failed.

    Raises:
        RunError: a trainer failed.
    """
    began, done = time.monotonic(), Publication(version)
    tell = Audience(list(replicas), done.failed, timeout_s)
    tell("begin_update", version)
    waiting: dict[Any, int] = {
        rank.next_bucket.remote(version, prefix, verify_share, True): index for index, rank in enumerate(trainers.ranks)
    }
    while waiting:
        asked = time.monotonic()
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=trainers.timeout_s)
        [bucket] = wait(ready or list(waiting)[:1], 1 if not ready else trainers.timeout_s, DURING)
        done.wait_seconds += time.monotonic() - asked
        index = waiting.pop(ready[0])
        if bucket is None:
            continue
        rank, node = trainers.ranks[index], trainers.nodes[index]
        # First the bytes: a rank answers one call after the other, and its next bucket may need ranks that are asked only once this one is
        # loaded.
        data = rank.bucket_bytes.remote(bucket) if tell.is_elsewhere(node) else None
        waiting[rank.next_bucket.remote(version, prefix, verify_share, False)] = index  # while this one is loaded
        tell.load(bucket, node, data)
        done.names += [entry.name for entry in bucket.entries if entry.is_last]
        done.num_bytes += sum(entry.num_bytes for entry in bucket.entries)
        done.num_checksums += sum(entry.is_last and bool(entry.checksum) for entry in bucket.entries)
    reports = tell("finish_update", version, done.names)
    slowest = max(reports, key=lambda report: report["load_seconds"], default={"load_seconds": 0.0, "pack_seconds": 0.0})
    done.load_seconds, done.pack_seconds = slowest["load_seconds"], slowest["pack_seconds"]
    for replica in tell.replicas:
        replica.version = version
    done.seconds = time.monotonic() - began
    return done


class Audience:
    """The engines that still take part in a publication."""

    def __init__(self, replicas: list[Replica], failed: dict[Replica, EngineFailure], timeout_s: float):
        self.replicas, self.failed, self.timeout_s = replicas, failed, timeout_s

    def __call__(self, method: str, *args: Any) -> list[Any]:
        """Answers of `method` of every engine; those that fail take no further part."""
        return self._wait({replica: getattr(replica.actor, method).remote(*args) for replica in self.replicas})

    def is_elsewhere(self, node: str) -> bool:
        """Whether an engine is on another node than `node`."""
        return any(replica.node != node for replica in self.replicas)

    def load(self, bucket: Bucket, node: str, data: Any) -> None:
        """Hand over a bucket that lies in the memory of `node`; engines on other nodes get `data`, its bytes in Ray's object store."""
        self._wait({replica: replica.actor.load_bucket.remote(bucket, data if replica.node != node else None) for replica in self.replicas})

    def _wait(self, calls: dict[Replica, Any]) -> list[Any]:
        answered = answers(calls, self.timeout_s, DURING, self.failed)
        self.replicas = list(answered)
        return list(answered.values())
