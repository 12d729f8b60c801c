"""The clipped loss and the KL estimators: values and gradients, by hand and by loops over single numbers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.algorithms import losses
from tandem.algorithms.kl import adapted, kl_estimate
from tandem.algorithms.losses import LossBatch
from tandem.algorithms.state import AlgorithmState
from tandem.config.schema import AlgorithmConfig, KLConfig
from tandem.errors import UserError


def batch(logprobs: torch.Tensor, old: list[float], advantages: list[float]) -> LossBatch:
    return LossBatch(logprobs, torch.tensor(old), torch.tensor(advantages), torch.zeros(len(old), dtype=torch.long), 1)


def by_hand(log_ratio: float, advantage: float, settings: AlgorithmConfig) -> float:
    """The papers' objective, to be maximised, turned into a loss."""
    ratio = math.exp(log_ratio)
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    objective = min(ratio * advantage, min(max(ratio, low), high) * advantage)
    if settings.clip_dual and advantage < 0:
        objective = max(objective, settings.clip_dual * advantage)
    return -objective


@given(
    tokens=st.lists(st.tuples(st.floats(-3, 3, width=32), st.floats(-2, 2, width=32)), min_size=1, max_size=20),
    clip_low=st.floats(0.05, 0.5),
    clip_high=st.floats(0.05, 1.0),
    clip_dual=st.sampled_from([0.0, 2.0, 3.0]),
)
def test_clipped_loss_is_that_of_the_literal_formula(tokens, clip_low, clip_high, clip_dual):
    settings = AlgorithmConfig(clip_low=clip_low, clip_high=clip_high, clip_dual=clip_dual)
    ratios, advantages = [d for d, _ in tokens], [a for _, a in tokens]
    output = losses.get("ppo_clip")(batch(torch.tensor(ratios), [0.0] * len(tokens), advantages), settings)
    expected = torch.tensor([by_hand(d, a, settings) for d, a in tokens])
    torch.testing.assert_close(output.loss_R, expected, rtol=2e-6, atol=1e-6)


def test_the_gradient_is_cut_exactly_where_the_token_counts_as_clipped():
    log_ratio = torch.tensor([-1.0, -0.1, 0.0, 0.1, 1.0, -1.0, -0.1, 0.0, 0.1, 1.0, 2.0], requires_grad=True)
    advantages = [1.0] * 5 + [-1.0] * 6
    output = losses.get("ppo_clip")(batch(log_ratio, [0.0] * 11, advantages), AlgorithmConfig(clip_dual=3.0))
    output.loss_R.sum().backward()
    # A > 0: only raising further is stopped; A < 0: only lowering further, and past ratio 3 (log 1.1) the dual clip
    assert output.clipped_R.tolist() == [False] * 4 + [True] + [True] + [False] * 4 + [True]
    assert ((log_ratio.grad == 0) == output.clipped_R).all()


def test_on_policy_the_ratio_is_one_and_the_gradient_minus_the_advantage():
    logprobs = torch.randn(50, generator=torch.Generator().manual_seed(0)).requires_grad_()
    advantages = torch.linspace(-2, 2, 50)
    output = losses.get("ppo_clip")(
        LossBatch(logprobs, logprobs.detach().clone(), advantages, torch.zeros(50, dtype=torch.long), 1), AlgorithmConfig()
    )
    output.loss_R.sum().backward()
    assert torch.equal(output.loss_R, -advantages) and torch.equal(logprobs.grad, -advantages) and not output.clipped_R.any()


def test_an_unknown_loss_names_the_nearest():
    with pytest.raises(UserError) as error:
        losses.get("ppo-clip")
    assert error.value.fix == "set algorithm.loss=ppo_clip"


FORMULAS = {"k1": lambda d: d, "abs": abs, "k2": lambda d: d * d / 2, "k3": lambda d: math.exp(-d) - 1 + d}


@given(d=st.floats(-8, 8, width=32), kind=st.sampled_from(sorted(FORMULAS)))
def test_kl_estimates_are_those_of_the_literal_formulas(d, kind):
    estimate = kl_estimate(torch.tensor([d]), torch.zeros(1), kind)
    assert estimate.item() == pytest.approx(FORMULAS[kind](d), rel=1e-5, abs=1e-6)


def test_unbiased_kl_estimates_average_to_the_kl():
    generator = torch.Generator().manual_seed(1)
    p, q = torch.randn(2, 50, generator=generator).log_softmax(-1)
    kl = (p.exp() * (p - q)).sum()
    for kind in ("k1", "k3"):
        torch.testing.assert_close((p.exp() * kl_estimate(p, q, kind)).sum(), kl, rtol=1e-5, atol=1e-6)


def test_gradients_of_k2_and_k1_are_those_the_docstring_promises():
    """Exact expectations over a vocabulary of 20: k2's gradient is the KL's, k1's is zero."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(20, generator=generator, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(20, generator=generator, dtype=torch.float64).log_softmax(-1)
    p = logits.log_softmax(-1)
    (kl,) = torch.autograd.grad((p.exp() * (p - reference)).sum(), logits, retain_graph=True)
    (k1,) = torch.autograd.grad((p.exp().detach() * kl_estimate(p, reference, "k1")).sum(), logits, retain_graph=True)
    (k2,) = torch.autograd.grad((p.exp().detach() * kl_estimate(p, reference, "k2")).sum(), logits)
    torch.testing.assert_close(k2, kl)
    torch.testing.assert_close(k1, torch.zeros_like(k1))


def test_k3_stays_finite_and_pulls_back_however_far_the_policy_is():
    for d, sign in ((-1000.0, -1.0), (-11.0, -1.0), (1000.0, 1.0)):
        logprobs = torch.tensor([d], requires_grad=True)
        estimate = kl_estimate(logprobs, torch.zeros(1), "k3")
        estimate.sum().backward()
        assert estimate.isfinite().all() and estimate.item() > 0
        assert logprobs.grad.isfinite().all() and torch.sign(logprobs.grad).item() == sign


def test_k3_is_continuous_where_its_tangent_takes_over():
    d = torch.tensor([-10.0 + 1e-4, -10.0, -10.0 - 1e-4], dtype=torch.float64, requires_grad=True)
    estimate = kl_estimate(d, torch.zeros(3, dtype=torch.float64), "k3")
    estimate.sum().backward()
    assert (estimate.max() / estimate.min()).item() == pytest.approx(1, abs=3e-4)
    torch.testing.assert_close(d.grad, (1 - (-d.clamp(min=-10.0)).exp()).detach())


@pytest.mark.parametrize(
    ("kl", "expected"),
    [(0.1, 1.0), (0.11, 1 + 0.1 * 0.256), (0.09, 1 - 0.1 * 0.256), (50.0, 1 + 0.2 * 0.256), (-3.0, 1 - 0.2 * 0.256), (math.nan, 1.0)],
)
def test_the_kl_coefficient_moves_towards_its_target_and_a_fifth_at_most(kl, expected):
    assert adapted(2.0, kl, 256, KLConfig(coef=2.0, target=0.1, horizon=1000)) == pytest.approx(2 * expected)


def test_without_a_target_the_coefficient_stays_exactly():
    assert adapted(0.1, 7.0, 256, KLConfig(coef=0.1)) == 0.1


def test_the_state_comes_back_from_a_checkpoint_as_it_was():
    state = AlgorithmState(0.125)
    for taken in (False, True, False, False):
        state.count(taken)
    assert AlgorithmState.from_dict(state.to_dict()) == AlgorithmState(0.125, num_skipped=3, num_skipped_in_a_row=2)
