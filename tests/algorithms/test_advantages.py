"""Advantages against loops that follow the papers word for word."""

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.algorithms import advantages
from tandem.config.schema import AlgorithmConfig
from tandem.errors import UserError

GROUPS = st.lists(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=9), min_size=1, max_size=5)


def flat(groups: list[list[float]], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rewards and group ids in a shuffled order: members of a group need not stand together."""
    rewards = np.array([r for group in groups for r in group], np.float32)
    ids = np.array([7 * i for i, group in enumerate(groups) for _ in group])
    order = np.random.default_rng(seed).permutation(len(rewards))
    return rewards[order], ids[order]


def by_hand(name: str, rewards: np.ndarray, ids: np.ndarray, norm_by_std: bool) -> list[float]:
    out = []
    for i, reward in enumerate(rewards):
        group = [float(r) for r, g in zip(rewards, ids) if g == ids[i]]
        others = [float(r) for j, (r, g) in enumerate(zip(rewards, ids)) if g == ids[i] and j != i]
        if len(set(group)) == 1:
            out.append(0.0)
        elif name == "rloo":
            out.append(float(reward) - statistics.fmean(others))
        else:
            centred = float(reward) - statistics.fmean(group)
            out.append(centred / (statistics.stdev(group) + 1e-6) if name == "grpo" and norm_by_std else centred)
    return out


@given(groups=GROUPS, seed=st.integers(0, 99), norm_by_std=st.booleans(), name=st.sampled_from(["grpo", "dr_grpo", "rloo"]))
def test_advantages_are_those_of_the_literal_formula(groups, seed, norm_by_std, name):
    rewards, ids = flat(groups, seed)
    result = advantages.get(name)(rewards, ids, AlgorithmConfig(norm_by_std=norm_by_std))
    np.testing.assert_allclose(result, by_hand(name, rewards, ids, norm_by_std), rtol=1e-6, atol=1e-9)


@given(size=st.integers(1, 100), value=st.floats(-10, 10, width=32), name=st.sampled_from(["grpo", "dr_grpo", "rloo"]))
def test_equal_rewards_give_exactly_zero(size, value, name):
    for dtype in (np.float32, np.float64):
        rewards = np.full(size, value, dtype)
        assert (advantages.get(name)(rewards, np.zeros(size, int), AlgorithmConfig()) == 0).all()


def test_nine_tenths_everywhere_is_no_advantage_though_its_mean_is_not_nine_tenths():
    groups = [np.full(size, 0.9, np.float32) for size in range(1, 65)]
    assert any(group.mean() != group[0] for group in groups), "otherwise this test pins nothing"
    for group in groups:
        assert (advantages.get("grpo")(group, np.zeros(len(group), int), AlgorithmConfig()) == 0).all()


def test_numbers_worked_out_on_paper():
    rewards, ids = np.array([1.0, 0.0, 0.0, 1.0, 0.5]), np.array([0, 0, 0, 1, 1])
    np.testing.assert_allclose(advantages.get("dr_grpo")(rewards, ids, AlgorithmConfig()), [2 / 3, -1 / 3, -1 / 3, 0.25, -0.25])
    np.testing.assert_allclose(advantages.get("rloo")(rewards, ids, AlgorithmConfig()), [1, -0.5, -0.5, 0.5, -0.5])
    # deviations: sqrt(1/3) and sqrt(1/8)
    np.testing.assert_allclose(
        advantages.get("grpo")(rewards, ids, AlgorithmConfig()), [1.1547005, -0.5773503, -0.5773503, 0.7071068, -0.7071068], rtol=1e-5
    )


def test_an_unknown_estimator_names_the_nearest():
    with pytest.raises(UserError, match=r"dr_grpo") as error:
        advantages.get("drgrpo")
    assert error.value.fix == "set algorithm.advantage=dr_grpo"
