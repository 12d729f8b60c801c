"""Micro-batches: every sequence in exactly one, the token budget kept with all padding, and a layout that scores what it should."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tandem.data.packing import pack, plan_micro_batches, split_among_ranks, split_by_tokens
from tandem.data.types import Prompt, Sequence
from tests.data.files import row

lengths_of_sequences = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def sequence(num_prompt: int, num_response: int, start: int = 100) -> Sequence:
    """A text sequence whose token ids count up from `start`, so that each can be found again."""
    ids = np.arange(start, start + num_prompt + num_response)
    positions = np.broadcast_to(np.arange(num_prompt), (3, num_prompt))
    prompt = Prompt(row("x"), ids[:num_prompt], positions, num_prompt, None, None, "")
    return Sequence(prompt, ids[num_prompt:], {"weights": ids[num_prompt:].astype(np.float32)})


def of_length(length: int, start: int = 100) -> Sequence:
    """At least one token is prompt and, from two on, one response."""
    return sequence(max(1, length // 2), length - max(1, length // 2), start)


@given(lengths=lengths_of_sequences, num_ranks=st.integers(1, 6))
def test_ranks_share_every_sequence_once_and_none_idles(lengths, num_ranks):
    ranks = split_among_ranks(lengths, num_ranks)
    assert sorted(i for indices in ranks for i in indices) == list(range(len(lengths)))
    assert max(map(len, ranks)) <= -(-len(lengths) // num_ranks)
    assert min(map(len, ranks)) >= 1 or len(lengths) < num_ranks


def test_ranks_get_the_same_number_when_it_divides():
    lengths = [500, 1, 1, 1, 1, 1, 1, 1]
    assert [len(indices) for indices in split_among_ranks(lengths, 4)] == [2, 2, 2, 2]


@given(st.lists(st.integers(1, 1000), min_size=64, max_size=64))
def test_tokens_are_balanced_among_ranks(lengths):
    loads = [sum(lengths[i] for i in indices) for indices in split_among_ranks(lengths, 4)]
    dealt = [sum(lengths[rank::4]) for rank in range(4)]
    assert max(loads) - min(loads) <= max(lengths)
    assert max(loads) <= max(dealt) or max(loads) - sum(lengths) / 4 <= max(lengths) / 4


def test_a_known_balance():
    assert split_among_ranks([8, 7, 6, 5, 4, 3, 2, 1], 2) == [[0, 3, 4, 7], [1, 2, 5, 6]]  # 18 tokens each


@given(lengths=lengths_of_sequences, max_tokens=st.integers(1, 80), padded=st.booleans())
def test_a_micro_batch_keeps_the_budget_and_a_longer_sequence_is_alone(lengths, max_tokens, padded):
    batches = split_by_tokens(list(range(len(lengths))), lengths, max_tokens, padded)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        tokens = len(batch) * max(lengths[i] for i in batch) if padded else sum(lengths[i] for i in batch)
        assert tokens <= max_tokens or len(batch) == 1


def test_short_sequences_fill_the_gaps_of_long_ones():
    assert split_by_tokens([0, 1, 2, 3], [60, 50, 40, 30], 100) == [[0, 2], [1, 3]]
    assert split_by_tokens([0, 1, 2], [60, 40, 50], 100, padded=True) == [[0], [1, 2]]


@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=30),
    num_ranks=st.integers(1, 4),
    max_tokens=st.integers(1, 150),
    cp=st.sampled_from([1, 2, 3]),
    tp=st.sampled_from([1, 2, 4]),
    multiple=st.integers(1, 3),
    padded=st.booleans(),
)
def test_packed_batches_keep_the_budget_with_all_their_padding(lengths, num_ranks, max_tokens, cp, tp, multiple, padded):
    align = 2 * cp if cp > 1 else 1
    padding = {"align": align, "total_align": align * tp, "padded": padded}
    plan = plan_micro_batches(lengths, num_ranks, max_tokens=max_tokens, multiple=multiple, **padding)
    sequences = [of_length(length, 1000 * number) for number, length in enumerate(lengths)]
    [count] = {len(batches) for batches in plan}  # the same on every rank: collectives meet
    assert count % multiple == 0 and count >= 1
    batches = [pack(sequences, indices, **padding) for rank in plan for indices in rank]
    assert sorted(i for batch in batches for i in batch.indices) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch.input_ids) % (align * tp) == 0
        assert len(batch.input_ids) <= max_tokens or len(batch.cu_seqlens) == 2
        assert all((end - start) % align == 0 for start, end in zip(batch.cu_seqlens, batch.cu_seqlens[1:]))
    scored = np.concatenate([batch.target[batch.score_index] for batch in batches])
    assert sorted(scored) == sorted(np.concatenate([s.response_ids for s in sequences]))


@given(lengths=lengths_of_sequences, num_ranks=st.integers(1, 4), size=st.integers(1, 5))
def test_a_fixed_micro_batch_size_is_kept_on_every_rank(lengths, num_ranks, size):
    plan = plan_micro_batches(lengths, num_ranks, max_tokens=1, micro_batch_size=size)
    assert len({len(batches) for batches in plan}) == 1
    assert all(len(indices) <= size for batches in plan for indices in batches)
    assert len(plan[0]) == -(-max(map(len, split_among_ranks(lengths, num_ranks))) // size)
    assert sorted(i for batches in plan for indices in batches for i in indices) == list(range(len(lengths)))


@given(lengths=lengths_of_sequences, seed=st.integers(0, 100))
def test_the_plan_depends_on_nothing_but_the_lengths(lengths, seed):
    assume(len(lengths) > 1)
    plan = plan_micro_batches(lengths, 2, max_tokens=64)
    assert plan == plan_micro_batches(list(lengths), 2, max_tokens=64)
    order = np.random.default_rng(seed).permutation(len(lengths))
    shuffled = plan_micro_batches([lengths[i] for i in order], 2, max_tokens=64)
    as_lengths = lambda plan, lengths: [[sorted(lengths[i] for i in b) for b in rank] for rank in plan]  # noqa: E731
    assert as_lengths(plan, lengths) == as_lengths(shuffled, [lengths[i] for i in order])


def test_two_sequences_end_to_end_written_out():
    batch = pack([sequence(2, 2, 10), sequence(3, 1, 20)], [0, 1], align=4, total_align=8)
    assert batch.input_ids.tolist() == [10, 11, 12, 13, 20, 21, 22, 23]
    assert batch.target.tolist() == [11, 12, 13, 0, 21, 22, 23, 0]  # never the first token of the next sequence
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3]] * 3
    assert batch.cu_seqlens == [0, 4, 8]
    assert batch.score_index.tolist() == [1, 2, 6]
    assert batch.segment_ids.tolist() == [0, 0, 1]
    assert batch.fields["weights"].tolist() == [12, 13, 23] and batch.fields["weights"].dtype == np.float32
    assert batch.num_tokens == 8 and batch.pixel_values is None and batch.image_grid_thw is None


def test_padding_is_counted_nowhere_and_its_positions_run_on():
    batch = pack([sequence(2, 1, 10), sequence(1, 1, 20)], [0, 1], align=4, total_align=16)
    assert batch.cu_seqlens == [0, 4, 16]  # the last sequence takes what the total lacks
    assert batch.input_ids.tolist() == [10, 11, 12, 0, 20, 21, *[0] * 10]
    assert batch.position_ids[1].tolist() == [*range(4), *range(12)]
    assert batch.target.tolist() == [11, 12, 0, 0, 21, *[0] * 11]
    assert batch.num_tokens == 5
    assert batch.target[batch.score_index].tolist() == [12, 21]


def test_without_packing_every_sequence_is_as_long_as_the_longest():
    batch = pack([sequence(1, 1), sequence(3, 2), sequence(1, 2)], [0, 1, 2], padded=True, align=2, total_align=4)
    assert batch.cu_seqlens == [0, 6, 12, 20]


def test_order_of_indices_is_order_in_the_batch():
    batch = pack([sequence(1, 1, 10), sequence(1, 1, 20), sequence(1, 1, 30)], [2, 0])
    assert batch.indices == (2, 0) and batch.input_ids.tolist() == [30, 31, 10, 11]


def test_a_response_without_tokens_scores_nothing_and_shifts_nobody():
    batch = pack([sequence(3, 0, 10), sequence(1, 2, 20)], [0, 1])
    assert batch.segment_ids.tolist() == [1, 1] and batch.target[batch.score_index].tolist() == [21, 22]


def test_an_empty_micro_batch_runs_on_the_shortest_sequence_and_scores_nothing():
    batch = pack([sequence(5, 5), sequence(2, 1, 50)], [], align=4)
    assert batch.input_ids.tolist() == [50, 51, 52, 0]
    assert len(batch.score_index) == len(batch.segment_ids) == batch.num_tokens == 0
    assert batch.indices == () and batch.fields == {}


def test_a_field_that_is_not_one_value_a_token_is_refused():
    good, bad = sequence(2, 3), sequence(2, 3)
    bad.fields["weights"] = np.ones(4, np.float32)
    with pytest.raises(AssertionError, match="one value a scored token"):
        pack([good, bad], [0, 1])


def test_pixels_and_positions_of_images_travel_with_their_sequences(sequences):
    chosen = [2, 0, 1, 6]  # two images, none, one, two
    batch = pack(sequences, chosen, align=4, total_align=8)
    prompts = [sequences[i].prompt for i in chosen]
    assert np.array_equal(batch.pixel_values, np.concatenate([p.pixel_values for p in prompts if p.pixel_values is not None]))
    assert batch.image_grid_thw.tolist() == [grid for p in prompts if p.image_grid_thw is not None for grid in p.image_grid_thw.tolist()]
    for index, start in zip(chosen, batch.cu_seqlens):
        own = sequences[index]
        assert np.array_equal(batch.position_ids[:, start : start + own.num_tokens], own.position_ids)
        assert np.array_equal(batch.input_ids[start : start + own.num_tokens], own.token_ids)
