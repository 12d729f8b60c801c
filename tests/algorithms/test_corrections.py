"""Corrections for samples of another distribution, against loops and numbers worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.algorithms.corrections import correction_weights, effective_share
from tandem.config.schema import CorrectionConfig

logprob = st.floats(-8.0, -0.01)
samples = st.lists(st.lists(st.tuples(logprob, logprob), min_size=1, max_size=6), min_size=1, max_size=4)


def by_loop(old: list[float], rollout: list[float], settings: CorrectionConfig) -> list[float]:
    ratios = [math.exp(a) / math.exp(b) for a, b in zip(old, rollout)]
    if settings.level == "sequence":
        ratios = [math.prod(ratios)] * len(ratios)
    weights = []
    for ratio in ratios:
        if settings.kind == "truncated":
            weights.append(ratio if ratio < settings.max else settings.max)
        elif ratio > settings.max or (settings.kind == "icepop" and ratio < settings.min):
            weights.append(0.0)
        else:
            weights.append(ratio)
    return weights


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("kind", ["truncated", "masked", "icepop"])
@given(drawn=samples)
def test_weights_are_those_of_a_loop_over_the_definition(kind, level, drawn):
    settings = CorrectionConfig(kind=kind, level=level)
    old, rollout = ([np.array([pair[side] for pair in sample]) for sample in drawn] for side in (0, 1))
    for weights, a, b in zip(correction_weights(old, rollout, settings), old, rollout):
        np.testing.assert_allclose(weights, by_loop(list(a), list(b), settings), rtol=1e-5)


def test_numbers_worked_out_by_hand():
    old, rollout = [np.log([0.5, 0.9, 0.1])], [np.log([0.25, 0.3, 0.4])]  # ratios 2, 3, 0.25; of the sequence 1.5
    expected = {
        ("truncated", "token"): [2, 2.5, 0.25],
        ("masked", "token"): [2, 0, 0.25],
        ("icepop", "token"): [2, 0, 0],
        ("truncated", "sequence"): [1.5, 1.5, 1.5],
        ("icepop", "sequence"): [1.5, 1.5, 1.5],
        ("none", "token"): [1, 1, 1],
    }
    for (kind, level), weights in expected.items():
        [ours] = correction_weights(old, rollout, CorrectionConfig(kind=kind, level=level, max=2.5, min=0.5))
        np.testing.assert_allclose(ours, weights, rtol=1e-6)


def test_equal_policies_leave_every_advantage_as_it_is():
    same = [np.log([0.5, 0.1])]
    for kind in ("truncated", "masked", "icepop"):
        [weights] = correction_weights(same, same, CorrectionConfig(kind=kind))
        assert weights.tolist() == [1.0, 1.0]


def test_effective_share():
    assert effective_share(np.ones(7)) == 1.0
    assert effective_share(np.array([1.0, 0.0, 0.0, 0.0])) == 0.25
    assert effective_share(np.array([2.0, 1.0])) == pytest.approx(9 / 10)
    assert effective_share(np.zeros(3)) == 0.0


def test_ratios_out_of_range_of_floats_stay_finite():
    [weights] = correction_weights([np.array([0.0])], [np.array([-1e4])], CorrectionConfig(kind="truncated", max=10.0))
    assert weights.tolist() == [10.0]
