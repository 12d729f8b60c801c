"""Token weights do not care how a mini-batch is split; learning rates at the corners of their schedules."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.algorithms.aggregation import token_weights
from tandem.algorithms.overlong import overlong_penalty
from tandem.algorithms.schedules import lr_at
from tandem.config.schema import OptimizerConfig

LIMIT = 64
LENGTHS = st.lists(st.integers(1, LIMIT), min_size=1, max_size=12)


def aggregate_by_hand(losses: list[list[float]], mode: str) -> float:
    if mode == "token_mean":
        return sum(map(sum, losses)) / sum(map(len, losses))
    if mode == "sequence_mean":
        return sum(sum(tokens) / len(tokens) for tokens in losses) / len(losses)
    return sum(sum(tokens) / LIMIT for tokens in losses) / len(losses)


@given(lengths=LENGTHS, mode=st.sampled_from(["token_mean", "sequence_mean", "constant"]), seed=st.integers(0, 1000))
def test_any_split_into_micro_batches_and_ranks_gives_the_loss_of_the_whole(lengths, mode, seed):
    rng = np.random.default_rng(seed)
    losses = [rng.normal(size=n).tolist() for n in lengths]
    weights = token_weights(np.array(lengths), mode, LIMIT)
    parts = rng.integers(0, 4, size=len(lengths))  # which of four micro-batches, some of them empty
    split = [sum(weights[i] * sum(losses[i]) for i in range(len(lengths)) if parts[i] == part) for part in range(4)]
    assert sum(split) == pytest.approx(aggregate_by_hand(losses, mode), rel=1e-9, abs=1e-12)


def test_weights_worked_out_on_paper():
    lengths = np.array([1, 3])
    assert token_weights(lengths, "token_mean", 10).tolist() == [0.25, 0.25]
    assert token_weights(lengths, "sequence_mean", 10).tolist() == [0.5, 1 / 6]
    assert token_weights(lengths, "constant", 10).tolist() == [0.05, 0.05]


@pytest.mark.parametrize("mode", ["token_mean", "sequence_mean", "constant"])
def test_empty_responses_do_not_make_weights_infinite(mode):
    assert np.isfinite(token_weights(np.array([0, 5]), mode, 10)).all() and np.isfinite(token_weights(np.array([0, 0]), mode, 10)).all()


def test_warm_up_rises_in_equal_steps_and_never_starts_at_zero():
    settings = OptimizerConfig(lr=8.0, warmup_steps=4)
    assert [lr_at(settings, step, 10) for step in range(1, 7)] == [2, 4, 6, 8, 8, 8]


def test_cosine_starts_at_the_peak_is_half_in_the_middle_and_falls_to_nearly_zero():
    settings = OptimizerConfig(lr=1.0, warmup_steps=2, schedule="cosine")
    rates = [lr_at(settings, step, 102) for step in range(1, 103)]
    assert rates[:3] == [0.5, 1.0, 1.0] and rates[52] == pytest.approx(0.5)
    assert 0 < rates[-1] < 1e-3 and sorted(rates[1:], reverse=True) == rates[1:]
    assert rates[27] == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_without_warm_up_the_first_step_has_the_full_rate():
    assert lr_at(OptimizerConfig(lr=3.0), 1, 1) == 3.0
    assert lr_at(OptimizerConfig(lr=3.0, schedule="cosine"), 1, 1) == 3.0


def test_wsd_is_flat_and_falls_in_equal_steps_over_its_last_share():
    settings = OptimizerConfig(lr=8.0, warmup_steps=2, schedule="wsd", decay_share=0.4)
    assert [lr_at(settings, step, 10) for step in range(1, 11)] == [4, 8, 8, 8, 8, 8, 8, 6, 4, 2]


def test_wsd_never_begins_to_fall_before_it_is_warm():
    settings = OptimizerConfig(lr=6.0, warmup_steps=4, schedule="wsd", decay_share=1.0)
    assert [lr_at(settings, step, 6) for step in range(1, 7)] == [1.5, 3, 4.5, 6, 6, 3]


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_falling_rates_end_at_their_floor(schedule):
    settings = OptimizerConfig(lr=2.0, schedule=schedule, min_lr_share=0.25)
    rates = [lr_at(settings, step, 1000) for step in range(1, 1002)]
    assert rates[0] == 2.0 and min(rates) == rates[-1] == pytest.approx(0.5)


def test_the_overlong_penalty_is_that_of_the_paper():
    """20480 tokens, of which the last 4096 are punished: DAPO's own numbers."""
    lengths = [1, 16384, 17408, 18432, 20480]
    assert [overlong_penalty(length, 20480, 4096) for length in lengths] == [0.0, 0.0, -0.25, -0.5, -1.0]
    assert overlong_penalty(20480, 20480, 0) == 0.0
