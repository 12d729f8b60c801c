"""Advantages against loops that follow the papers word for word."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.algorithms import advantages
from tandem.algorithms.advantages import ADVANTAGES, GREEDY_ADVANTAGES, AdvantageBatch
from tandem.config.checks import CRITIC_ADVANTAGES, GROUP_ADVANTAGES
from tandem.config.schema import AlgorithmConfig
from tandem.errors import UserError

REWARD = st.floats(0, 1, width=32)
GROUPS = st.lists(st.lists(st.tuples(REWARD, st.integers(1, 50)), min_size=1, max_size=9), min_size=1, max_size=5)


def flat(groups: list[list[tuple[float, int]]], seed: int) -> AdvantageBatch:
    """In a shuffled order: members of a group need not stand together."""
    rewards = np.array([r for group in groups for r, _ in group], np.float32)
    lengths = np.array([n for group in groups for _, n in group])
    ids = np.array([7 * i for i, group in enumerate(groups) for _ in group])
    rng = np.random.default_rng(seed)
    order, greedy = rng.permutation(len(rewards)), {i: float(rng.random()) for i in ids}
    return AdvantageBatch(rewards[order], ids[order], lengths[order], np.array([greedy[i] for i in ids[order]]))


def batch_of(rewards: list[float], ids: list[int], lengths: list[int] | None = None) -> AdvantageBatch:
    return AdvantageBatch(np.array(rewards), np.array(ids), np.array(lengths or [5] * len(ids)))


def of_group(name: str, i: int, group: dict[int, float], lengths: dict[int, int], norm_by_std: bool) -> float:
    """The advantage of sample `i` by its paper's formula, from the rewards and lengths of its group alone."""
    mean, others = statistics.fmean(group.values()), [r for j, r in group.items() if j != i]
    if len(set(group.values())) == 1:
        return 0.0
    if name == "rloo":
        return group[i] - statistics.fmean(others)
    if name == "opo":
        return group[i] - sum(lengths[j] * r for j, r in group.items()) / sum(lengths[j] for j in group)
    advantage = max(group.values()) - max(others) if name == "grpo_passk" else group[i] - mean
    return advantage / (statistics.stdev(group.values()) + 1e-6) if norm_by_std and name in ("grpo", "grpo_passk") else advantage


def by_hand(name: str, batch: AdvantageBatch, norm_by_std: bool) -> list[float]:
    rewards, lengths = dict(enumerate(batch.rewards_B.tolist())), dict(enumerate(batch.lengths_B.tolist()))
    if name == "remax":
        return [reward - greedy for reward, greedy in zip(rewards.values(), batch.greedy_rewards_B)]
    if name == "reinforce_plus_plus":
        each, shift = list(rewards.values()), True
    else:
        each, shift = [], False
        for i in rewards:
            group = {j: rewards[j] for j in rewards if batch.groups_B[j] == batch.groups_B[i]}
            each.append(of_group("dr_grpo" if name.startswith("reinforce") else name, i, group, lengths, norm_by_std))
    if not name.startswith("reinforce"):
        return each
    tokens = [value for value, n in zip(each, lengths.values()) for _ in range(n)]
    return [(value - (statistics.fmean(tokens) if shift else 0.0)) / (statistics.pstdev(tokens) + 1e-8) for value in each]


@given(
    groups=GROUPS, seed=st.integers(0, 99), norm_by_std=st.booleans(), name=st.sampled_from(sorted({*ADVANTAGES} - {*CRITIC_ADVANTAGES}))
)
def test_advantages_are_those_of_the_literal_formula(groups, seed, norm_by_std, name):
    batch = flat(groups, seed)
    result = advantages.get(name)(batch, AlgorithmConfig(norm_by_std=norm_by_std))
    scale = max(1.0, 1e-7 / max(1e-8, np.ptp(batch.rewards_B)))  # differences in the last bits, blown up by a deviation near 0
    np.testing.assert_allclose(result, by_hand(name, batch, norm_by_std), rtol=1e-6 * scale, atol=1e-7 * scale)


@given(size=st.integers(1, 100), value=st.floats(-10, 10, width=32), name=st.sampled_from([*GROUP_ADVANTAGES, "reinforce_plus_plus"]))
def test_equal_rewards_give_exactly_zero(size, value, name):
    for dtype in (np.float32, np.float64):
        batch = AdvantageBatch(np.full(size, value, dtype), np.zeros(size, int), np.arange(1, size + 1))
        assert (advantages.get(name)(batch, AlgorithmConfig()) == 0).all()


@pytest.mark.parametrize("name", GROUP_ADVANTAGES)
def test_a_group_of_equal_rewards_gets_exactly_zero_beside_one_that_differs(name):
    batch = batch_of([0.9] * 7 + [0.1, 0.9, 0.3], [0] * 7 + [1] * 3, [3, 1, 4, 1, 5, 9, 2, 6, 5, 3])
    result = advantages.get(name)(batch, AlgorithmConfig())
    assert (result[:7] == 0).all() and (result[7:] != 0).any()


def test_nine_tenths_everywhere_is_no_advantage_though_its_mean_is_not_nine_tenths():
    groups = [np.full(size, 0.9, np.float32) for size in range(1, 65)]
    assert any(group.mean() != group[0] for group in groups), "otherwise this test pins nothing"
    for group in groups:
        batch = AdvantageBatch(group, np.zeros(len(group), int), np.ones(len(group), int))
        assert (advantages.get("grpo")(batch, AlgorithmConfig()) == 0).all()


ON_PAPER = {
    "dr_grpo": [2 / 3, -1 / 3, -1 / 3, 0.25, -0.25],
    "rloo": [1, -0.5, -0.5, 0.5, -0.5],
    "grpo": [1.1547005, -0.5773503, -0.5773503, 0.7071068, -0.7071068],  # deviations sqrt(1/3) and sqrt(1/8)
    "opo": [0.5, -0.5, -0.5, 0.375, -0.125],  # baselines 4 / 8 and (1 * 2 + 0.5 * 6) / 8 = 0.625
    "grpo_passk": [1.7320508, 0, 0, 1.4142136, 0],  # leads 1 and 0.5
    # 16 tokens earn 4 * 1 + 2 * 1 + 6 * 0.5 = 9: mean 9/16, variance 7.5/16 - (9/16)^2 = 39/256
    "reinforce_plus_plus": [7 / math.sqrt(39), -9 / math.sqrt(39), -9 / math.sqrt(39), 7 / math.sqrt(39), -1 / math.sqrt(39)],
}


@pytest.mark.parametrize("name", ON_PAPER)
def test_numbers_worked_out_on_paper(name):
    batch = batch_of([1.0, 0.0, 0.0, 1.0, 0.5], [0, 0, 0, 1, 1], [4, 2, 2, 2, 6])
    np.testing.assert_allclose(advantages.get(name)(batch, AlgorithmConfig()), ON_PAPER[name], rtol=1e-5, atol=1e-9)


def test_the_whole_batchs_deviation_scales_what_groups_are_above_their_mean():
    batch = batch_of([1.0, 0.0, 3.0, 1.0], [0, 0, 1, 1], [1, 1, 1, 1])  # +-1/2 and +-1, deviation sqrt(5/8)
    result = advantages.get("reinforce_plus_plus_baseline")(batch, AlgorithmConfig())
    np.testing.assert_allclose(result, np.array([0.5, -0.5, 1, -1]) / math.sqrt(5 / 8), rtol=1e-6)


def test_remax_measures_against_the_greedy_response_and_works_with_one_sample():
    batch = AdvantageBatch(np.array([1.0, 0.1]), np.array([0, 1]), np.array([2, 3]), np.array([0.0, 1.0]))
    np.testing.assert_allclose(advantages.get("remax")(batch, AlgorithmConfig()), [1.0, -0.9])


def test_every_estimator_is_known_to_the_rule_about_groups():
    """`reinforce_plus_plus` and `remax` alone learn from single samples."""
    assert set(ADVANTAGES) - set(GROUP_ADVANTAGES) == {"reinforce_plus_plus", *GREEDY_ADVANTAGES, *CRITIC_ADVANTAGES}


def test_an_unknown_estimator_names_the_nearest():
    with pytest.raises(UserError, match=r"dr_grpo") as error:
        advantages.get("drgrpo")
    assert error.value.fix == "set algorithm.advantage=dr_grpo"
