"""GAE against the sums of its paper, its two ends, whitening; the critic's clipped loss against a loop."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.algorithms.advantages import AdvantageBatch, get
from tandem.algorithms.advantages.gae import generalized, value_targets
from tandem.algorithms.losses.value import value_loss
from tandem.config.schema import AlgorithmConfig

number = st.floats(-3, 3, width=32)
tokens = st.lists(st.tuples(number, number), min_size=1, max_size=9)
share = st.sampled_from([0.0, 0.5, 0.9, 0.95, 1.0])


def by_hand(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """Equation 16: sum over l of (gamma lam)^l delta_{t+l}."""
    advantages = []
    for t in range(len(rewards)):
        total = 0.0
        for later in range(t, len(rewards)):
            following = values[later + 1] if later + 1 < len(values) else 0.0
            total += (gamma * lam) ** (later - t) * (rewards[later] + gamma * following - values[later])
        advantages.append(total)
    return advantages


def by_averages(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """Equations 11 to 15: (1 - lam) times the sum of lam^(k-1) times the k-step estimate; after the end all of them are the same."""
    advantages = []
    for t in range(len(rewards)):
        left = len(rewards) - t
        estimates = []
        for k in range(1, left + 1):
            earned = sum(gamma**i * rewards[t + i] for i in range(k))
            ahead = gamma**k * values[t + k] if t + k < len(values) else 0.0
            estimates.append(earned + ahead - values[t])
        total = sum((1 - lam) * lam ** (k - 1) * estimates[k - 1] for k in range(1, left))
        advantages.append(total + lam ** (left - 1) * estimates[-1])
    return advantages


@given(tokens, share, share)
def test_every_advantage_is_the_discounted_sum_of_what_came_unexpected(pairs, gamma, lam):
    rewards, values = map(list, zip(*pairs))
    ours = generalized(np.array(rewards), np.array(values), gamma, lam)
    assert ours == pytest.approx(by_hand(rewards, values, gamma, lam), abs=1e-5)
    assert ours == pytest.approx(by_averages(rewards, values, gamma, lam), abs=1e-5)


def batch_of(samples: list[list[tuple[float, float]]]) -> AdvantageBatch:
    arrays = [np.array(pairs, np.float32).reshape(-1, 2).T for pairs in samples]
    n = len(samples)
    rewards, lengths = np.array([r.sum() for r, _ in arrays]), np.array([len(r) for r, _ in arrays])
    return AdvantageBatch(rewards, np.arange(n), lengths, token_rewards=[r for r, _ in arrays], values=[v for _, v in arrays])


@given(st.lists(tokens, min_size=1, max_size=5))
def test_with_lam_1_the_target_of_a_value_is_what_was_earned_from_there_on(samples):
    settings = AlgorithmConfig(lam=1.0, gamma=1.0)
    for pairs, targets in zip(samples, value_targets(batch_of(samples), settings)):
        assert targets == pytest.approx([sum(r for r, _ in pairs[t:]) for t in range(len(pairs))], abs=1e-4)


@pytest.mark.parametrize("name", ["gae", "ppo"])
@given(samples=st.lists(tokens, min_size=1, max_size=5))
def test_whitening_is_over_all_tokens_of_the_batch_and_changes_no_target(name, samples):
    raw = get(name)(batch_of(samples), AlgorithmConfig(whiten=False))
    white = get(name)(batch_of(samples), AlgorithmConfig())
    flat = [float(a) for one in raw for a in one]
    mean = sum(flat) / len(flat)
    std = (sum((a - mean) ** 2 for a in flat) / len(flat)) ** 0.5
    assert [len(one) for one in white] == [len(pairs) for pairs in samples]
    if std > 1e-6:
        assert np.concatenate(white) == pytest.approx([(a - mean) / (std + 1e-8) for a in flat], rel=1e-6, abs=1e-6)
    for pairs, targets, advantages in zip(samples, value_targets(batch_of(samples), AlgorithmConfig()), raw):
        assert targets == pytest.approx([a + v for a, (_, v) in zip(advantages, pairs)], abs=1e-5)


def test_equal_advantages_are_exactly_0_when_they_are_whitened():
    same = [[(0.1, 0.0)], [(0.1, 0.0)], [(0.1, 0.0)]]
    assert all((one == 0.0).all() for one in get("gae")(batch_of(same), AlgorithmConfig()))


def test_a_response_without_tokens_has_no_advantages_and_harms_no_other():
    assert [len(one) for one in get("gae")(batch_of([[], [(1.0, 0.5), (0.0, 0.25)]]), AlgorithmConfig())] == [0, 2]


def test_a_worked_case():
    """gamma 0.5, lam 0.5: delta = (0 + 0.5*2 - 1, 4 - 2) = (0, 2), A = (0 + 0.25*2, 2)."""
    assert generalized(np.array([0.0, 4.0]), np.array([1.0, 2.0]), 0.5, 0.5).tolist() == [0.5, 2.0]


@given(st.lists(st.tuples(number, number, number), min_size=1, max_size=8), st.sampled_from([0.0, 0.2, 1.0]))
def test_the_values_loss_is_the_larger_of_free_and_clipped_and_its_gradient_is_cut_where_the_clip_is(triples, clip):
    values, old, targets = (torch.tensor(column, dtype=torch.float64, requires_grad=i == 0) for i, column in enumerate(zip(*triples)))
    out = value_loss(values, old, targets, clip)
    out.loss_R.sum().backward()
    for i, (v, o, t) in enumerate(triples):
        free = (v - t) ** 2 / 2
        near = max(o - clip, min(o + clip, v))
        bounded = (near - t) ** 2 / 2
        expected = max(free, bounded) if clip else free
        assert float(out.loss_R[i]) == pytest.approx(expected, abs=1e-6)
        if clip and bounded > free + 1e-6:
            assert bool(out.clipped_R[i]) and float(values.grad[i]) == 0.0
        elif abs(free - bounded) > 1e-6 or not clip:
            assert float(values.grad[i]) == pytest.approx(v - t, abs=1e-6)
