"""Bytes of weights, gradients and optimizer of a training rank: Megatron-Core's buffers and its distributed optimizer, padding included.

Source: `_ParamAndGradBuffer` and `DistributedOptimizer` of Megatron-Core 0.16.1. Trained parameters lie end to end, last one first, each at
a multiple of 64 elements, in a buffer padded to a multiple of 128 and of the data-parallel size; one buffer for dense weights, one for
experts. A data-parallel rank keeps fp32 weights (where those of the model are bfloat16) and two fp32 moments of its slice of each bucket.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import lcm

from tandem.config.schema import Config
from tandem.plan.layout import Layout
from tandem.plan.parameters import Parameter

ITEM_BYTES = {"float32": 4, "bfloat16": 2}
GRAD_BYTES = 4  # reduced in fp32
MOMENT_BYTES = 8
STEP_BYTES = 4  # torch's AdamW counts steps for each parameter


@dataclass(frozen=True)
class States:
    """Bytes."""

    weights: int
    gradients: int
    optimizer: int
    num_parameters: int

    def __add__(self, other: "States") -> "States":
        return States(*(a + b for a, b in zip(vars(self).values(), vars(other).values())))


Bucket = list[tuple[int, int]]  # (start, end) of each parameter, from the bucket's own start


def _buckets(parameters: Iterable[Parameter]) -> list[Bucket]:
    buckets: list[Bucket] = [[]]
    end, alone = 0, False
    for parameter in parameters:
        if buckets[-1] and (parameter.shared or alone):
            buckets.append([])
            end = 0
        start = -(-end // 64) * 64
        end = start + parameter.numel
        buckets[-1].append((start, end))
        alone = parameter.shared
    return [bucket for bucket in buckets if bucket]


def _buffer(parameters: list[Parameter], num_shards: int, shard: int, item_bytes: int) -> States:
    total = held = steps = 0
    for bucket in _buckets(reversed(parameters)):
        padded = -(-bucket[-1][1] // lcm(num_shards, 128)) * lcm(num_shards, 128)
        size = padded // num_shards
        begin, stop = shard * size, (shard + 1) * size
        parts = [min(end, stop) - max(start, begin) for start, end in bucket]
        held += sum(part for part in parts if part > 0)
        steps += sum(part > 0 for part in parts)
        total += padded
    of_element = MOMENT_BYTES + (4 if item_bytes < 4 else 0)
    count = sum(parameter.numel for parameter in parameters)
    return States(total * item_bytes, total * GRAD_BYTES, held * of_element + steps * STEP_BYTES, count)


def chunk_states(parameters: list[Parameter], config: Config, layout: Layout, rank: int) -> States:
    """Of one model chunk on `rank`."""
    item = ITEM_BYTES[config.model.dtype]
    trained = [p for p in parameters if not p.frozen]
    frozen = sum(p.numel for p in parameters if p.frozen)
    states = States(frozen * item, 0, 0, frozen)
    for expert, group in ((False, "dp_cp"), (True, "expert_dp")):
        members = [p for p in trained if p.expert == expert]
        states += _buffer(members, layout.groups[group].size, layout.place(group, rank), item)
    return states


def worst_states(chunks: list[list[Parameter]], config: Config, layout: Layout) -> States:
    """Of the rank of a stage that holds most: the largest slice of dense weights and the largest of experts, which are near equal."""
    total = States(0, 0, 0, 0)
    item = ITEM_BYTES[config.model.dtype]
    for chunk in chunks:
        frozen = sum(p.numel for p in chunk if p.frozen)
        total += States(frozen * item, 0, 0, frozen)
        for expert, group in ((False, "dp_cp"), (True, "expert_dp")):
            members, size = [p for p in chunk if not p.frozen and p.expert == expert], layout.groups[group].size
            total += max((_buffer(members, size, shard, item) for shard in range(size)), key=lambda states: states.optimizer)
    return total


def rank_states(chunks: list[list[Parameter]], config: Config, layout: Layout, rank: int) -> States:
    """Of a rank with its model chunks."""
    total = States(0, 0, 0, 0)
    for chunk in chunks:
        total += chunk_states(chunk, config, layout, rank)
    return total
