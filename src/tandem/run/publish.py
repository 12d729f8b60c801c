"""Carry the trainer's weights to generators: named, checksummed, versioned, one bucket at a time from each rank.

A rank fills one half of its bucket while the engines read the other. Where it lies, `sync.transport` says: in shared memory; in the rank's
device memory, which engines of the node open; or there, and the rank sends it to each engine's first worker. Ranks that only take part in a
gather answer when the gathering rank has finished. An engine that fails is left out of the rest; the others get all.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray

from tandem.actors.generator_group import EngineFailure, Replica, answers
from tandem.actors.train_group import TrainGroup, wait
from tandem.sync.types import Bucket

DURING = "a publication"
GRACE_SECONDS = 5.0  # beside a limit that the other side keeps itself


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
    trainers: TrainGroup,
    replicas: list[Replica],
    version: int,
    prefix: str,
    *,
    verify_share: float,
    timeout_s: float,
    progress: Callable[[int], None] = lambda num_tensors: None,
) -> Publication:
    """Bring `replicas` to the trainers' present weights; those that took all of them have `version`.

    Args:
        prefix: of bucket files, unique to the run.
        verify_share: of the tensors whose checksums are compared, 0 to 1.
        timeout_s: an engine that takes longer for one bucket has failed.
        progress: told how many tensors have arrived.

    Raises:
        RunError: a trainer failed.
    """
    began, done = time.monotonic(), Publication(version)
    tell = Audience(list(replicas), done.failed, timeout_s)
    if trainers.config.sync.transport == "collective":
        tell.link(trainers)
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
        forwarded = tell.forward(rank, bucket, node)
        waiting[rank.next_bucket.remote(version, prefix, verify_share, False)] = index  # while this one is loaded
        tell.load(bucket, node, forwarded)
        done.names += [entry.name for entry in bucket.entries if entry.is_last]
        progress(len(done.names))
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

    def link(self, trainers: TrainGroup) -> None:
        """Have the ranks and each engine that they cannot reach yet join."""
        for replica in [replica for replica in self.replicas if not replica.is_linked]:
            replica.num_links += 1
            meeting = trainers.meeting(f"engine{replica.index}.{replica.num_links}", self.timeout_s)
            joins = [rank.join.remote(replica.index, meeting) for rank in trainers.ranks]
            if answers({replica: replica.actor.join.remote(meeting)}, self.timeout_s, DURING, self.failed):
                wait(joins, trainers.timeout_s, DURING)
                replica.is_linked = True
        self.replicas = [replica for replica in self.replicas if replica.is_linked]

    def forward(self, rank: Any, bucket: Bucket, node: str) -> Any:
        """What a rank of `node` is asked about a bucket: to send its bytes to each engine, or their copy for engines on other nodes."""
        if bucket.sender >= 0:
            return {replica: rank.send.remote(replica.index, bucket) for replica in self.replicas}
        return rank.bucket_bytes.remote(bucket) if any(replica.node != node for replica in self.replicas) else None

    def load(self, bucket: Bucket, node: str, forwarded: Any) -> None:
        """Hand over a bucket of a rank of `node`, and what `forward` gave for it."""
        sends = forwarded if bucket.sender >= 0 else {}
        copy = {replica: None if sends or replica.node == node else forwarded for replica in self.replicas}
        loads = {replica: replica.actor.load_bucket.remote(bucket, copy[replica]) for replica in self.replicas}
        for replica, send in sends.items():
            # A rank sends to one engine after the other: what one of them takes too long is not the next one's.
            if not answers({replica: send}, self.timeout_s + GRACE_SECONDS, DURING, self.failed):
                answers({replica: loads.pop(replica)}, GRACE_SECONDS, DURING, self.failed)  # why, if it knows
        self._wait(loads)

    def _wait(self, calls: dict[Replica, Any]) -> list[Any]:
        answered = answers(calls, self.timeout_s, DURING, self.failed)
        for replica in set(self.replicas) - answered.keys():
            replica.is_linked = False  # what was on its way to it would come first
        self.replicas = list(answered)
        return list(answered.values())
