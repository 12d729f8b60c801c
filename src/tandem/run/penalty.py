"""The KL to the reference as a price that the reward pays."""

import numpy as np
import torch

from tandem.algorithms.kl import Kind, kl_estimate
from tandem.run.samples import Sample


def take_kl_from_rewards(samples: list[Sample], coef: float, kind: Kind) -> dict[str, float]:
    """Each reward less coef * the sum of its response's KL estimates. Returns metrics.

    The whole response pays, also for what came before a token: the same expected gradient as paying from each token on, at more variance.
    With a critic each token pays for itself (`Sample.kl_rewards`).
    """
    per_sample = [
        kl_estimate(torch.from_numpy(s.fields["old_logprobs"]), torch.from_numpy(s.fields["ref_logprobs"]), kind).double().numpy()
        for s in samples
    ]
    for sample, kl_R in zip(samples, per_sample):
        sample.kl_rewards = -coef * kl_R
        sample.kl_penalty = float(sample.kl_rewards.sum())
        sample.reward += sample.kl_penalty
    return {
        "kl/ref": float(np.concatenate(per_sample).mean()),
        "reward/kl_penalty": float(np.mean([sample.kl_penalty for sample in samples])),
    }
