"""GSPO, CISPO, SAPO, GMPO: against loops over single numbers on ragged batches, by hand, and on policy, where all have PPO's gradient."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.algorithms import losses
from tandem.algorithms.aggregation import token_weights
from tandem.algorithms.losses import LOSSES, LossBatch
from tandem.config.schema import AlgorithmConfig

TOKEN = st.floats(-2, 2, width=32)
SEQUENCES = st.lists(st.tuples(st.lists(TOKEN, min_size=1, max_size=6), st.floats(-2, 2, width=32)), min_size=1, max_size=4)
OURS = ("gspo", "gspo_token", "cispo", "sapo", "gmpo")


def batch_of(sequences: list[tuple[list[float], float]], *, logprob: float = -3.0) -> LossBatch:
    """Of log ratios and one advantage for each sequence; every old log-prob is `logprob`."""
    log_ratios = torch.tensor([d for ratios, _ in sequences for d in ratios])
    advantages = torch.tensor([a for ratios, a in sequences for _ in ratios])
    segments = torch.tensor([i for i, (ratios, _) in enumerate(sequences) for _ in ratios])
    return LossBatch((log_ratios + logprob).requires_grad_(), torch.full_like(log_ratios, logprob), advantages, segments, len(sequences))


def by_hand(name: str, ratios: list[float], a: float, settings: AlgorithmConfig) -> list[float]:
    """Losses of one sequence's tokens, from its log ratios and its advantage."""
    low, high = settings.clip_low, settings.clip_high
    if name in ("gspo", "gspo_token"):
        s = math.prod(math.exp(d) for d in ratios) ** (1 / len(ratios))
        return [-min(s * a, min(max(s, 1 - low), 1 + high) * a)] * len(ratios)
    if name == "gmpo":
        values = [min(math.exp(d) * a, min(max(math.exp(d), math.exp(-low)), math.exp(high)) * a) for d in ratios]
        geometric = math.prod(abs(value) ** (1 / len(ratios)) for value in values)
        return [-math.copysign(geometric, a) if a else 0.0] * len(ratios)
    if name == "cispo":
        return [-min(max(math.exp(d), 1 - low), 1 + high) * a * (d - 3.0) for d in ratios]
    tau = settings.tau_positive if a > 0 else settings.tau_negative
    return [-4 / tau * a / (1 + math.exp(-tau * (math.exp(d) - 1))) for d in ratios]


@given(sequences=SEQUENCES, name=st.sampled_from(OURS), clip_low=st.floats(0.01, 1), clip_high=st.floats(0.01, 1), tau=st.floats(0.5, 2))
def test_losses_are_those_of_the_literal_formulas(sequences, name, clip_low, clip_high, tau):
    settings = AlgorithmConfig(clip_low=clip_low, clip_high=clip_high, tau_positive=tau, tau_negative=1.3 * tau)
    expected = [value for ratios, a in sequences for value in by_hand(name, ratios, a, settings)]
    output = losses.get(name)(batch_of(sequences), settings)
    torch.testing.assert_close(output.loss_R.detach(), torch.tensor(expected), rtol=1e-4, atol=1e-5)


def test_numbers_worked_out_on_paper():
    two, half = math.log(2), -math.log(2)
    sequences = [([two, two, half], 1.0), ([half, half], -1.0)]  # mean ratios 2^(1/3) and 1/2
    settings = AlgorithmConfig(clip_low=0.2, clip_high=0.2, tau_positive=1.0, tau_negative=2.0)
    expected = {
        "gspo": [-1.2] * 3 + [0.8] * 2,
        "gspo_token": [-1.2] * 3 + [0.8] * 2,
        "gmpo": [-math.exp((0.2 + 0.2 + half) / 3)] * 3 + [math.exp(-0.2)] * 2,
        "cispo": [1.2 * (3 - two)] * 2 + [0.8 * (3 - half)] + [-0.8 * (3 - half)] * 2,
        "sapo": [-4 / (1 + math.exp(-1))] * 2 + [-4 / (1 + math.exp(0.5))] + [2 / (1 + math.exp(1))] * 2,
    }
    clipped = {"gspo": [1] * 5, "gspo_token": [1] * 5, "gmpo": [1, 1, 0, 1, 1], "cispo": [1] * 5, "sapo": [0] * 5}
    for name in OURS:
        output = losses.get(name)(batch_of(sequences), settings)
        torch.testing.assert_close(output.loss_R.detach(), torch.tensor(expected[name]), rtol=1e-6, atol=1e-6)
        assert output.clipped_R.int().tolist() == clipped[name], name


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_on_policy_every_loss_has_the_gradient_of_reinforce(name):
    """Under weights that are the same for all tokens of a sequence: minus the advantage, by each token's weight."""
    sequences = [([0.0] * 3, 1.5), ([0.0], -0.5), ([0.0] * 7, -2.0)]
    batch = batch_of(sequences)
    weights = torch.tensor([w for w, n in zip(token_weights(np.array([3, 1, 7]), "sequence_mean", 9), [3, 1, 7]) for _ in range(n)])
    (losses.get(name)(batch, AlgorithmConfig()).loss_R * weights).sum().backward()
    torch.testing.assert_close(batch.logprobs_R.grad, (-batch.advantages_R * weights).float())


@pytest.mark.parametrize("name", ["gspo", "gspo_token", "gmpo"])
def test_a_sequence_is_not_changed_by_what_else_is_in_its_micro_batch(name):
    sequences = [([0.3, -0.1, 0.02], 1.0), ([0.1], -1.0), ([-0.4, 0.2], 0.5)]
    together = losses.get(name)(batch_of(sequences), AlgorithmConfig()).loss_R
    alone = torch.cat([losses.get(name)(batch_of([sequence]), AlgorithmConfig()).loss_R for sequence in sequences])
    torch.testing.assert_close(together, alone)


def test_cispo_keeps_the_gradient_of_tokens_whose_weight_is_bounded_and_ppo_cuts_it():
    batch = batch_of([([1.0], 1.0)])
    losses.get("cispo")(batch, AlgorithmConfig()).loss_R.sum().backward()
    assert batch.logprobs_R.grad.item() == pytest.approx(-1.2)
    batch = batch_of([([1.0], 1.0)])
    losses.get("ppo_clip")(batch, AlgorithmConfig()).loss_R.sum().backward()
    assert batch.logprobs_R.grad.item() == 0


def test_gspo_token_gives_each_token_its_own_advantage_where_gspo_mixes_them():
    """A token whose correction is 0 has no gradient of its own; in GSPO its probability still moves the sequence's ratio."""
    gradients = {}
    for name in ("gspo", "gspo_token"):
        batch = batch_of([([0.0, 0.0], 1.0)])
        masked = LossBatch(batch.logprobs_R, batch.old_logprobs_R, torch.tensor([1.0, 0.0]), batch.segment_ids_R, 1)
        losses.get(name)(masked, AlgorithmConfig()).loss_R.sum().backward()
        gradients[name] = batch.logprobs_R.grad.tolist()
    assert gradients == {"gspo": [-0.5, -0.5], "gspo_token": [-1.0, 0.0]}


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("log_ratio", [-1e4, 1e4])
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
def test_absurd_ratios_stay_finite(name, log_ratio, advantage):
    batch = batch_of([([log_ratio, 0.0], advantage)])
    output = losses.get(name)(batch, AlgorithmConfig())
    output.loss_R.sum().backward()
    assert output.loss_R.isfinite().all() and batch.logprobs_R.grad.isfinite().all()
