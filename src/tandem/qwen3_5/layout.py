"""Where every token of a micro-batch sits: sequence boundaries, rope angles, chunks, context-parallel slices. Every layer reads it.

Under context parallelism of size P each sequence is cut into 2P equal pieces and rank r holds pieces r and 2P-1-r, so that causal attention
costs every rank the same.
"""

import itertools
from dataclasses import dataclass

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from tandem.qwen3_5.gated_delta import ChunkLayout, chunk_layout


@dataclass
class SequenceLayout(PackedSeqParams):
    """Megatron's packed-sequence parameters plus what Qwen3.5 needs. T: its tokens, L: those on this context-parallel rank."""

    boundaries: tuple[int, ...] = ()  # cu_seqlens as Python integers
    cos: Tensor | None = None  # [L, rotary_dim]
    sin: Tensor | None = None  # [L, rotary_dim]
    position_T: Tensor | None = None  # each token's index in its own sequence
    chunks: ChunkLayout | None = None
    local_L: Tensor | None = None  # indices into T of this rank's tokens; None without context parallelism
    gathered_T: Tensor | None = None  # indices into T of the tokens of all ranks, rank after rank
    ungathered_T: Tensor | None = None  # the inverse permutation
    experts: Tensor | None = None  # [rows of this rank inside a layer, layers, k]: chosen by the generator; -1: not known


def context_parallel_slice(boundaries: tuple[int, ...], cp_size: int, cp_rank: int) -> Tensor:
    """Indices of the tokens that `cp_rank` holds, int64."""
    pieces = []
    for start, end in itertools.pairwise(boundaries):
        length = (end - start) // (2 * cp_size)
        assert length * 2 * cp_size == end - start, "sequences must be padded to a multiple of 2 * cp"
        for piece in (cp_rank, 2 * cp_size - 1 - cp_rank):
            pieces.append(torch.arange(start + piece * length, start + (piece + 1) * length))
    return torch.cat(pieces)


def rope_angles(position_ids_3T: Tensor, rotary_dim: int, theta: float, sections: list[int]) -> tuple[Tensor, Tensor]:
    """cos and sin [T, rotary_dim], fp32, of the interleaved 3-axis rope: frequency i belongs to axis 1 (height) when i % 3 == 1 and
    i < 3 * sections[1], to axis 2 (width) when i % 3 == 2 and i < 3 * sections[2], else to axis 0 (time)."""
    frequency = 1.0 / theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)
    axis = torch.zeros(rotary_dim // 2, dtype=torch.long)
    for which in (1, 2):
        axis[which : 3 * sections[which] : 3] = which
    angles = position_ids_3T.float()[axis].t() * frequency
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def apply_rope(x_LHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first `rotary_dim` channels of every head (half-split pairs), leave the rest."""
    rotary_dim = cos.size(-1)
    cos, sin = cos[:, None].to(x_LHD.dtype), sin[:, None].to(x_LHD.dtype)
    rotated, kept = x_LHD[..., :rotary_dim], x_LHD[..., rotary_dim:]
    first, second = rotated.chunk(2, -1)
    rotated = rotated * cos + torch.cat([-second, first], -1) * sin
    return torch.cat([rotated, kept], -1)


def sequence_layout(
    cu_seqlens: list[int], position_ids_3T: Tensor, hf_text_config, *, cp_size: int = 1, cp_rank: int = 0, device: str = "cpu"
) -> SequenceLayout:
    """Build the layout of one micro-batch.

    Args:
        cu_seqlens: S + 1 boundaries of the (padded) sequences.
        position_ids_3T: 3-axis positions, computed per sample before packing.
        hf_text_config: transformers' text config: rope parameters and head size.
        device: where the layers will run.
    """
    text, rope = hf_text_config, hf_text_config.rope_parameters
    rotary_dim = int(text.head_dim * rope.get("partial_rotary_factor", 1.0))
    sections = rope.get("mrope_section", [11, 11, 10])
    boundaries = tuple(cu_seqlens)
    cu = torch.tensor(boundaries, dtype=torch.int32)
    lengths = (cu[1:] - cu[:-1]).long()
    position_T = torch.arange(boundaries[-1]) - torch.repeat_interleave(cu[:-1].long(), lengths)
    local_L = gathered_T = ungathered_T = None
    if cp_size > 1:
        slices = [context_parallel_slice(boundaries, cp_size, rank) for rank in range(cp_size)]
        local_L, gathered_T = slices[cp_rank], torch.cat(slices)
        ungathered_T = torch.argsort(gathered_T)
    cos, sin = rope_angles(position_ids_3T if local_L is None else position_ids_3T[:, local_L], rotary_dim, rope["rope_theta"], sections)
    delta_width = text.linear_num_value_heads * (text.linear_key_head_dim + text.linear_value_head_dim)
    to = lambda x: None if x is None else x.to(device)  # noqa: E731
    longest = int(lengths.max())
    return SequenceLayout(
        qkv_format="thd",
        cu_seqlens_q=to(cu),
        cu_seqlens_kv=to(cu),
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        boundaries=boundaries,
        cos=to(cos),
        sin=to(sin),
        position_T=to(position_T),
        chunks=chunk_layout(cu, delta_width, device),
        local_L=to(local_L),
        gathered_T=to(gathered_T),
        ungathered_T=to(ungathered_T),
    )
