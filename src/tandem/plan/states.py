"""Bytes of weights, gradients and optimizer of a training rank: Megatron-Core's buffers and its distributed optimizer, padding included.

Source: `_ParamAndGradBuffer` and `DistributedOptimizer` of Megatron-Core 0.16.1. Trained parameters lie end to end, last one first, each at
a multiple of 64 elements, in a buffer padded to a multiple of 128 and of the data-parallel size; one buffer for dense weights, one for
experts, one for what stays in fp32. A data-parallel rank keeps fp32 weights (where those of the model are bfloat16, or the optimizer is on
the CPU) and two fp32 moments of its slice of each bucket.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import lcm

from tandem.config.schema import Config
from tandem.plan.layout import Layout
from tandem.plan.parameters import Parameter

ITEM_BYTES = {"float32": 4, "bfloat16": 2}
IN_FP32 = (
    ".A_log",
    ".out_norm.weight",
    "value_head.weight",
    "value_head.bias",
)  # whatever the model's dtype: stored so, or a critic's head
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


class _Bucket:
    """Parameters end to end: a bucket of Megatron's buffer."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.sums = [0]  # of elements before each parameter

    def append(self, numel: int) -> None:
        start = -(-self.ends[-1] // 64) * 64 if self.ends else 0
        self.starts.append(start)
        self.ends.append(start + numel)
        self.sums.append(self.sums[-1] + numel)

    def padded(self, num_shards: int) -> int:
        unit = lcm(num_shards, 128)
        return -(-self.ends[-1] // unit) * unit

    def held(self, begin: int, stop: int) -> tuple[int, int]:
        """Elements of parameters between two places, and the number of parameters they belong to."""
        first, last = bisect_right(self.ends, begin), bisect_left(self.starts, stop)
        if first >= last:
            return 0, 0
        outside = max(0, begin - self.starts[first]) + max(0, self.ends[last - 1] - stop)
        return self.sums[last] - self.sums[first] - outside, last - first


def _buckets(parameters: Iterable[Parameter]) -> list[_Bucket]:
    buckets, alone = [_Bucket()], False
    for parameter in parameters:
        if buckets[-1].ends and (parameter.shared or alone):
            buckets.append(_Bucket())
        buckets[-1].append(parameter.numel)
        alone = parameter.shared
    return [bucket for bucket in buckets if bucket.ends]


def _shards(parameters: list[Parameter], num_shards: int, item_bytes: int, master_bytes: int) -> Callable[[int], States]:
    """States of one buffer by the number of the data-parallel rank that has a slice of it."""
    buckets = _buckets(reversed(parameters))
    total, count = sum(bucket.padded(num_shards) for bucket in buckets), sum(bucket.sums[-1] for bucket in buckets)
    of_element = MOMENT_BYTES + master_bytes

    def of(shard: int) -> States:
        held = steps = 0
        for bucket in buckets:
            size = bucket.padded(num_shards) // num_shards
            elements, num_parameters = bucket.held(shard * size, (shard + 1) * size)
            held, steps = held + elements, steps + num_parameters
        return States(total * item_bytes, total * GRAD_BYTES, held * of_element + steps * STEP_BYTES, count)

    return of


def _buffers(parameters: list[Parameter], config: Config, layout: Layout) -> Iterator[tuple[str, Callable[[int], States]]]:
    """Megatron's buffers of trained parameters: the group whose ranks share each, and its states by the rank in that group."""
    item = ITEM_BYTES[config.model.dtype]
    for expert, group in ((False, "dp_cp"), (True, "expert_dp")):
        members = [p for p in parameters if not p.frozen and p.expert == expert]
        for in_fp32 in (False, True):
            if some := [
                p for p in members if (item < 4 and p.name.endswith(IN_FP32)) == in_fp32
            ]:  # in an fp32 model they lie among the rest
                of_item = 4 if in_fp32 else item
                master = 4 if of_item < 4 or config.optimizer.on_cpu else 0
                yield group, _shards(some, layout.groups[group].size, of_item, master)


def _frozen(parameters: list[Parameter], config: Config) -> States:
    frozen = sum(p.numel for p in parameters if p.frozen)
    return States(frozen * ITEM_BYTES[config.model.dtype], 0, 0, frozen)


def chunk_states(parameters: list[Parameter], config: Config, layout: Layout, rank: int) -> States:
    """Of one model chunk on `rank`."""
    states = _frozen(parameters, config)
    for group, shards in _buffers(parameters, config, layout):
        states += shards(layout.place(group, rank))
    return states


def worst_states(chunks: list[list[Parameter]], config: Config, layout: Layout) -> States:
    """Of the rank of a stage that holds most: the largest slice of each buffer, which are near equal."""
    total = States(0, 0, 0, 0)
    for chunk in chunks:
        total += _frozen(chunk, config)
        for group, shards in _buffers(chunk, config, layout):
            total += max(map(shards, range(layout.groups[group].size)), key=lambda states: states.optimizer)
    return total


def rank_states(chunks: list[list[Parameter]], config: Config, layout: Layout, rank: int) -> States:
    """Of a rank with its model chunks."""
    total = States(0, 0, 0, 0)
    for chunk in chunks:
        total += chunk_states(chunk, config, layout, rank)
    return total
