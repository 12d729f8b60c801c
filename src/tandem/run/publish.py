"""Carry the trainer's weights to every generator: named, checksummed, versioned, one bucket at a time from each rank.

A rank asked for its next bucket frees the one before, so that shared memory holds one bucket a rank at most. Ranks that only take part in a
gather answer when the gathering rank has finished.
"""

import time
from dataclasses import dataclass
from typing import Any

import ray

from tandem.run.groups import GeneratorGroup, TrainGroup, wait


@dataclass(frozen=True)
class Publication:
    version: int
    names: tuple[str, ...]  # tensors, in the order they travelled
    num_bytes: int
    seconds: float


def publish(trainers: TrainGroup, generators: GeneratorGroup, version: int, prefix: str) -> Publication:
    """Raises RunError when a tensor arrives damaged, twice or not at all; then no generator accepts requests for `version`."""
    began, limit = time.monotonic(), generators.timeout_s
    wait([engine.begin_update.remote(version) for engine in generators.engines], limit, "the publication")
    waiting: dict[Any, Any] = {rank.next_bucket.remote(version, prefix, True): rank for rank in trainers.ranks}
    names: list[str] = []
    num_bytes = 0
    while waiting:
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=limit)
        [bucket] = wait(ready or list(waiting)[:1], 1 if not ready else limit, "the publication")
        rank = waiting.pop(ready[0])
        if bucket is None:
            continue
        wait([engine.load_bucket.remote(bucket) for engine in generators.engines], limit, "the publication")
        names += [entry.name for entry in bucket.entries]
        num_bytes += sum(entry.num_bytes for entry in bucket.entries)
        waiting[rank.next_bucket.remote(version, prefix, False)] = rank
    wait([engine.finish_update.remote(version, names) for engine in generators.engines], limit, "the publication")
    return Publication(version, tuple(names), num_bytes, time.monotonic() - began)
