"""What the engine minimizes, term by term: the policy's loss, plus KL, minus the entropy bonus. Against a loop over single tokens."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tandem.config.schema import AlgorithmConfig
from tandem.engine import objective

LOGPROBS, ENTROPIES = [-1.0, -2.0, -0.5], [0.7, 1.5, 0.2]
OLD, REF, WEIGHTS, ADVANTAGES = [-1.2, -1.5, -0.5], [-0.4, -2.5, -1.0], [0.2, 0.2, 0.5], [1.0, 1.0, -2.0]
AT = [1, 2, 4]  # where the response tokens' scores are, in a packed batch of 6


def batch() -> SimpleNamespace:
    fields = {"old_logprobs": OLD, "ref_logprobs": REF, "weights": WEIGHTS, "advantages": ADVANTAGES}
    return SimpleNamespace(
        fields={name: np.array(values, np.float32) for name, values in fields.items()},
        score_index=np.array(AT),
        segment_ids=np.array([0, 0, 1]),
        indices=[3, 7],
    )


def measured(algorithm: AlgorithmConfig, kl_coef: float) -> tuple[float, torch.Tensor, dict[str, float]]:
    scores = torch.full((2, 6), 9.0)
    scores[0, AT], scores[1, AT] = torch.tensor(LOGPROBS), torch.tensor(ENTROPIES)
    scores.requires_grad_()
    total, report = objective.policy(algorithm, 3, kl_coef)(batch(), scores)
    total.backward()
    return float(total) / 3, scores.grad / 3, report


@pytest.mark.parametrize(
    ("kl_coef", "where", "entropy_coef"), [(0.0, "loss", 0.0), (0.3, "loss", 0.0), (0.3, "reward", 0.1), (0.3, "loss", 0.1)]
)
def test_kl_is_a_cost_entropy_a_gain_and_what_is_in_the_reward_is_not_in_the_loss(kl_coef, where, entropy_coef):
    algorithm = AlgorithmConfig(kl={"coef": kl_coef, "kind": "k2", "where": where}, entropy_coef=entropy_coef)
    policy = total = 0.0
    for new, old, ref, entropy, weight, a in zip(LOGPROBS, OLD, REF, ENTROPIES, WEIGHTS, ADVANTAGES):
        ratio = math.exp(new - old)
        policy -= weight * min(ratio * a, min(max(ratio, 0.8), 1.2) * a)
        total += weight * ((kl_coef * (new - ref) ** 2 / 2 if where == "loss" else 0.0) - entropy_coef * entropy)
    loss, grad, report = measured(algorithm, kl_coef)
    assert loss == pytest.approx(policy + total, rel=1e-5) and report["loss/policy"] == pytest.approx(policy, rel=1e-5)
    assert ("kl/ref" in report) == (kl_coef > 0 and where == "loss")
    assert grad[1, AT].tolist() == pytest.approx([-entropy_coef * weight for weight in WEIGHTS]), "more entropy, less loss"
    assert not grad[:, [0, 3, 5]].any(), "prompts and padding have no part"
