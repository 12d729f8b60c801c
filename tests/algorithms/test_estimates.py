"""pass@k, maj@n and their intervals, each against a loop over every choice of samples."""

from fractions import Fraction
from itertools import combinations
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.algorithms.estimates import Samples, bootstrap, estimates, ks, majority, pass_at_k


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_share_of_all_choices_of_k_samples_that_hold_a_correct_one(correct, data):
    k = data.draw(st.integers(1, len(correct)))
    choices = list(combinations(correct, k))
    hits = 0
    for choice in choices:
        for is_correct in choice:
            if is_correct:
                hits += 1
                break
    assert pass_at_k(len(correct), sum(correct), k) == pytest.approx(float(Fraction(hits, len(choices))))


def test_pass_at_k_of_many_samples_neither_overflows_nor_leaves_the_unit_interval():
    assert pass_at_k(1000, 1, 500) == pytest.approx(0.5)
    assert pass_at_k(100_000, 3, 1) == pytest.approx(3e-5)
    assert pass_at_k(5, 0, 5) == 0.0 and pass_at_k(5, 5, 1) == 1.0


answers = st.sampled_from(["7", "8", "9", None])


@given(st.lists(answers, min_size=1, max_size=8), st.sampled_from(["7", "8", "9"]))
def test_the_majority_counts_single_votes_and_halves_what_a_tie_is_worth(given_answers, truth):
    counts: dict[str, int] = {}
    for answer in given_answers:
        if answer is not None:
            counts[answer] = counts.get(answer, 0) + 1
    leaders = []
    for answer, count in counts.items():
        beaten = False
        for other in counts.values():
            beaten = beaten or other > count
        if not beaten:
            leaders.append(answer)
    expected = (truth in leaders) / len(leaders) if leaders else 0.0
    accuracies = [float(answer == truth) for answer in given_answers]
    assert majority(Samples(accuracies, given_answers)) == pytest.approx(expected)


def test_wrong_answers_that_agree_outvote_right_ones_that_are_fewer():
    assert majority(Samples([1, 0, 0], ["7", "8", "8"])) == 0.0
    assert majority(Samples([1, 1, 0], ["7", "7", "8"])) == 1.0
    assert majority(Samples([1, 0, 0], ["7", None, None])) == 1.0  # those without an answer do not vote
    assert majority(Samples([0, 0], [None, None])) == 0.0


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=6))
def test_estimates_are_means_over_prompts_and_pass_at_1_is_the_average(rows):
    found = estimates([Samples([float(c) for c in row], ["a" if c else "b" for c in row]) for row in rows])
    assert list(found) == ["avg_at_4", "pass_at_1", "pass_at_2", "pass_at_4", "maj_at_4"]
    assert found["pass_at_1"].value == pytest.approx(found["avg_at_4"].value) == pytest.approx(fmean(fmean(row) for row in rows))
    assert found["pass_at_4"].value == pytest.approx(fmean(any(row) for row in rows))
    for one in found.values():
        assert (one.low is None) == (len(rows) == 1)
        assert one.low is None or (0.0 <= one.low <= one.value + 1e-12 and one.value - 1e-12 <= one.high <= 1.0)


def test_a_grader_without_a_notion_of_answers_has_no_majority():
    assert list(estimates([Samples([0.5, 0.25], [None, None])])) == ["avg_at_2", "pass_at_1", "pass_at_2"]
    assert ks(1) == [1] and ks(6) == [1, 2, 4, 6] and ks(8) == [1, 2, 4, 8]


def test_half_points_count_in_the_average_and_not_as_correct():
    found = estimates([Samples([0.5, 1.0], [None, None])])
    assert found["avg_at_2"].value == 0.75 and found["pass_at_1"].value == 0.5


@pytest.mark.parametrize("num_prompts", [2, 24, 1000])
def test_no_success_at_all_is_not_taken_for_certainty(num_prompts):
    """The bound is the accuracy at which so many failures in a row have a chance of 2.5%."""
    never = estimates([Samples([0.0], [None])] * num_prompts)["avg_at_1"]
    always = estimates([Samples([1.0], [None])] * num_prompts)["avg_at_1"]
    assert (never.value, never.low, always.value, always.high) == (0.0, 0.0, 1.0, 1.0)
    assert (1 - never.high) ** num_prompts == pytest.approx(0.025) and always.low == pytest.approx(1 - never.high)


def test_the_interval_draws_whole_prompts_so_that_samples_of_one_prompt_do_not_make_it_narrower():
    """8 equal samples of each prompt tell no more than one; against resampling prompts by hand, and the normal approximation."""
    rng = np.random.default_rng(1)
    per_prompt = rng.integers(0, 2, 60).astype(float)
    one = estimates([Samples([value], [None]) for value in per_prompt])["avg_at_1"]
    eight = estimates([Samples([value] * 8, [None] * 8) for value in per_prompt])["avg_at_8"]
    assert (one.low, one.high) == pytest.approx((eight.low, eight.high))
    half = 1.96 * per_prompt.std(ddof=1) / np.sqrt(len(per_prompt))
    assert one.high - one.low == pytest.approx(2 * half, rel=0.15)
    again = np.random.default_rng(0)
    means = []
    for _ in range(2000):
        means.append(fmean(per_prompt[again.integers(60, size=60)].tolist()))
    means.sort()
    assert one.low == pytest.approx(means[49], abs=0.02) and one.high == pytest.approx(means[1950], abs=0.02)
    assert np.array_equal(bootstrap(per_prompt[:, None])[0], bootstrap(per_prompt[:, None])[0])  # the same for the same values
