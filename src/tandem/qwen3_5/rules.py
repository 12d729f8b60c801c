"""How a Megatron parameter is made of Hugging Face tensors, and back, under tensor parallelism. Pure functions on tensors.

A rule's `split(tensors, rank, size)` gives one rank's parameter, `merge(shards)` the Hugging Face tensors of all ranks' parameters. A split
reads no more of the tensors, which may be views of a mapped file, than the rank's part; a merge of one shard copies nothing where it can.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Rule(Protocol):
    def split(self, tensors: list[Tensor], rank: int, size: int) -> Tensor: ...
    def merge(self, shards: list[Tensor]) -> list[Tensor]: ...


def _cat(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), dim)


@dataclass(frozen=True)
class Whole:
    """The same tensor on every rank."""

    def split(self, tensors: list[Tensor], rank: int, size: int) -> Tensor:
        return tensors[0]

    def merge(self, shards: list[Tensor]) -> list[Tensor]:
        return [shards[0]]


@dataclass(frozen=True)
class Rows:
    """Cut along dimension 0 (the output of a column-parallel layer)."""

    def split(self, tensors: list[Tensor], rank: int, size: int) -> Tensor:
        return tensors[0].chunk(size)[rank]

    def merge(self, shards: list[Tensor]) -> list[Tensor]:
        return [_cat(shards)]


@dataclass(frozen=True)
class Columns:
    """Cut along dimension 1 (the input of a row-parallel layer)."""

    def split(self, tensors: list[Tensor], rank: int, size: int) -> Tensor:
        return tensors[0].chunk(size, 1)[rank]

    def merge(self, shards: list[Tensor]) -> list[Tensor]:
        return [_cat(shards, 1)]


@dataclass(frozen=True)
class Stacked:
    """Several blocks of rows, each cut by rank, one below another: `blocks[i]` has the rows of the blocks inside Hugging Face tensor i."""

    blocks: tuple[tuple[int, ...], ...]

    def split(self, tensors: list[Tensor], rank: int, size: int) -> Tensor:
        parts = [part for tensor, rows in zip(tensors, self.blocks) for part in tensor.split(rows)]
        return torch.cat([part.chunk(size)[rank] for part in parts])

    def merge(self, shards: list[Tensor]) -> list[Tensor]:
        size, flat = len(shards), [rows for block in self.blocks for rows in block]
        pieces = [shard.split([rows // size for rows in flat]) for shard in shards]
        parts = iter(zip(*pieces))  # of each block of rows, rank by rank
        return [_cat([part for _ in block for part in next(parts)]) for block in self.blocks]


@dataclass(frozen=True)
class HeadMajor:
    """Rows of all queries, all keys, all values -> per head: query, key, value; heads cut by rank."""

    num_heads: int

    def split(self, tensors: list[Tensor], rank: int, size: int) -> Tensor:
        heads = tensors[0].unflatten(0, (3, self.num_heads, -1)).chunk(size, 1)[rank]
        return heads.transpose(0, 1).flatten(0, 2)

    def merge(self, shards: list[Tensor]) -> list[Tensor]:
        return [_cat(shards).unflatten(0, (self.num_heads, 3, -1)).transpose(0, 1).flatten(0, 2)]


@dataclass(frozen=True)
class GatedQKV:
    """q_proj (per head: query rows, gate rows), k_proj, v_proj -> per key-value group: queries, gates, key, value; groups cut by rank."""

    num_heads: int
    num_groups: int
    head_dim: int

    def split(self, tensors: list[Tensor], rank: int, size: int) -> Tensor:
        q_proj, k_proj, v_proj = tensors
        per_group = self.num_heads // self.num_groups
        query, gate = q_proj.view(self.num_groups, per_group, 2, self.head_dim, -1).chunk(size)[rank].unbind(2)
        key, value = (x.view(self.num_groups, 1, self.head_dim, -1).chunk(size)[rank] for x in (k_proj, v_proj))
        return torch.cat([query, gate, key, value], 1).flatten(0, 2)

    def merge(self, shards: list[Tensor]) -> list[Tensor]:
        per_group, hidden = self.num_heads // self.num_groups, shards[0].size(-1)
        mixed = _cat(shards).view(self.num_groups, -1, self.head_dim, hidden)
        query, gate, key, value = mixed.split([per_group, per_group, 1, 1], 1)
        q_proj = torch.stack([query, gate], 2)
        return [x.reshape(-1, hidden) for x in (q_proj, key, value)]
