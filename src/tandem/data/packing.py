"""Sequences -> micro-batches: which goes where, and how they lie end to end. The only place that shifts tokens against targets.

Shapes: T tokens of a micro-batch (padding included), S sequences, R scored tokens of all its sequences: those of their responses that the
model sampled.
"""

from dataclasses import dataclass

import numpy as np

from tandem.data.types import Sequence


@dataclass(frozen=True)
class PackedBatch:
    """One micro-batch. Scored token j of sequence i is predicted at index `score_index[...]`; `fields` are aligned with that index."""

    indices: tuple[int, ...]  # which sequences of the step, in order
    input_ids: np.ndarray  # [T] int64
    target: np.ndarray  # [T] int64, the next token; 0 where there is none to score
    position_ids: np.ndarray  # [3, T] int64
    cu_seqlens: list[int]  # S + 1, padded lengths
    score_index: np.ndarray  # [R] int64 into T
    segment_ids: np.ndarray  # [R] int64, which of the S sequences
    fields: dict[str, np.ndarray]  # name -> [R] float32
    pixel_values: np.ndarray | None  # [N, patch_dim] float32
    image_grid_thw: np.ndarray | None  # [I, 3] int64
    num_tokens: int  # without padding
    experts: np.ndarray | None = None  # [T, layers, k] int16, -1 where the generator chose none


def split_among_ranks(lengths: list[int], num_ranks: int) -> list[list[int]]:
    """Indices for each data-parallel rank, balanced by tokens: the longest sequence goes to the rank with the fewest tokens so far.

    No rank gets more than its share of the count, rounded up; none is left without work unless there are fewer sequences than ranks.
    """
    limit = -(-len(lengths) // num_ranks)
    ranks: list[list[int]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        rank = min((r for r in range(num_ranks) if len(ranks[r]) < limit), key=lambda r: (loads[r], r))
        ranks[rank].append(index)
        loads[rank] += lengths[index]
    return [sorted(indices) for indices in ranks]


def split_by_tokens(indices: list[int], lengths: list[int], max_tokens: int, padded: bool = False) -> list[list[int]]:
    """Micro-batches of at most `max_tokens` tokens each (a longer sequence gets one of its own): first fit, longest first.

    Args:
        padded: every sequence takes as many tokens as the longest of its micro-batch.
    """
    bins: list[tuple[int, list[int]]] = []
    for index in sorted(indices, key=lambda i: (-lengths[i], i)):
        for at, (load, members) in enumerate(bins):
            taken = lengths[members[0] if padded else index]
            if load + taken <= max_tokens:
                members.append(index)
                bins[at] = (load + taken, members)
                break
        else:
            bins.append((lengths[index], [index]))
    return [sorted(members) for _, members in bins]


def plan_micro_batches(
    lengths: list[int],
    num_ranks: int,
    *,
    max_tokens: int,
    micro_batch_size: int = 0,
    multiple: int = 1,
    align: int = 1,
    total_align: int = 1,
    padded: bool = False,
) -> list[list[list[int]]]:
    """[rank][micro-batch] -> indices. Every rank has the same number of micro-batches, as the collectives inside a forward need.

    Args:
        lengths: tokens of each sequence.
        max_tokens: token budget of a micro-batch with its padding, used when `micro_batch_size` is 0.
        micro_batch_size: sequences a micro-batch.
        multiple: the number of micro-batches is a multiple of this (interleaved pipelines need the pipeline size).
        align, total_align, padded: what `pack` will be given, so that its padding is counted.

    A rank that would have fewer gets empty ones: they run on a stand-in sequence that scores nothing.
    """
    plan = []
    room = max_tokens - max_tokens % total_align
    widths = [-(-length // align) * align for length in lengths]
    for indices in split_among_ranks(lengths, num_ranks):
        if micro_batch_size:
            plan.append([indices[at : at + micro_batch_size] for at in range(0, len(indices), micro_batch_size)])
        else:
            plan.append(split_by_tokens(indices, widths, room, padded))
    count = max(1, *(len(batches) for batches in plan))
    count = -(-count // multiple) * multiple
    return [batches + [[]] * (count - len(batches)) for batches in plan]


def pack(sequences: list[Sequence], indices: list[int], *, align: int = 1, total_align: int = 1, padded: bool = False) -> PackedBatch:
    """Lay `sequences[i] for i in indices` end to end.

    Args:
        align: each sequence is padded on the right to a multiple of this (2 * cp under context parallelism).
        total_align: T is a multiple of this (tp under sequence parallelism); the last sequence takes the padding.
        padded: pad every sequence to the longest, as the reference recipe does without packing.

    An empty `indices` gives the stand-in of `plan_micro_batches`: the shortest sequence, scoring nothing.
    """
    score = bool(indices)
    for i in indices:
        assert all(len(values) == sequences[i].num_scored for values in sequences[i].fields.values()), "one value a scored token"
    members = [sequences[i] for i in indices] if indices else [min(sequences, key=lambda s: s.num_tokens)]
    lengths = [-(-s.num_tokens // align) * align for s in members]
    if padded:
        lengths = [max(lengths)] * len(lengths)
    while sum(lengths) % total_align:
        lengths[-1] += align
    cu_seqlens = [0, *np.cumsum(lengths).tolist()]
    total = cu_seqlens[-1]
    input_ids, target = np.zeros(total, np.int64), np.zeros(total, np.int64)
    position_ids = np.zeros((3, total), np.int64)
    score_index, segment_ids = [], []
    for which, (sequence, start, end) in enumerate(zip(members, cu_seqlens[:-1], cu_seqlens[1:])):
        num_tokens, num_prompt = sequence.num_tokens, len(sequence.prompt.token_ids)
        input_ids[start : start + num_tokens] = sequence.token_ids
        target[start : start + num_tokens - 1] = sequence.token_ids[1:]
        position_ids[:, start : start + num_tokens] = sequence.position_ids
        position_ids[:, start + num_tokens : end] = sequence.position_ids.max() + 1 + np.arange(end - start - num_tokens)
        if score:
            own = np.arange(num_tokens - num_prompt) if sequence.own is None else np.flatnonzero(sequence.own)
            score_index.append(start + num_prompt - 1 + own)
            segment_ids.append(np.full(len(own), which, np.int64))
    routed = [s.experts if score else None for s in members]
    images = [part for s in members for part in s.images]
    names = members[0].fields if score else ()
    return PackedBatch(
        indices=tuple(indices),
        input_ids=input_ids,
        target=target,
        position_ids=position_ids,
        cu_seqlens=cu_seqlens,
        score_index=np.concatenate(score_index) if score else np.zeros(0, np.int64),
        segment_ids=np.concatenate(segment_ids) if score else np.zeros(0, np.int64),
        fields={name: np.concatenate([s.fields[name] for s in members]).astype(np.float32) for name in names},
        pixel_values=np.concatenate([pixels for pixels, _ in images]) if images else None,
        image_grid_thw=np.concatenate([grid for _, grid in images]) if images else None,
        num_tokens=sum(s.num_tokens for s in members) if score else 0,
        experts=_pack_experts(routed, cu_seqlens),
    )


def _pack_experts(experts: list[np.ndarray | None], cu_seqlens: list[int]) -> np.ndarray | None:
    known = [choices for choices in experts if choices is not None]
    if not known:
        return None
    packed = np.full((cu_seqlens[-1], *known[0].shape[1:]), -1, np.int16)
    for choices, start in zip(experts, cu_seqlens):
        if choices is not None:
            packed[start : start + len(choices)] = choices
    return packed
