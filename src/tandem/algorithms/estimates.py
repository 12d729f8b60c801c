"""How good a model is, from several graded samples of each prompt: avg@n, pass@k, maj@n, and how sure that is.

pass@k: Chen et al., "Evaluating Large Language Models Trained on Code", 2021 (arXiv 2107.03374), equation 1.
maj@n: Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models", 2022 (arXiv 2203.11171).
Intervals: percentile bootstrap, Efron, 1979. Prompts are drawn again, each with all of its samples, which are not independent.

Shapes: P prompts, M measures.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NUM_RESAMPLES, CONFIDENCE = 2000, 0.95


@dataclass(frozen=True)
class Samples:
    """Of one prompt."""

    accuracies: Sequence[float]  # 0 to 1; 1 is correct, anything less is not
    answers: Sequence[str | None]  # as the grader understood them, in one spelling; None: none, or a grader without such a notion


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts and its 95% interval; without one, `low` and `high` are None."""

    value: float
    low: float | None
    high: float | None


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): the chance that k of the n samples, drawn without putting back, hold a correct one. Unbiased.

    Args:
        k: 1 to `num_samples`.
    """
    assert 1 <= k <= num_samples and 0 <= num_correct <= num_samples
    wrong = num_samples - num_correct
    if wrong < k:
        return 1.0
    return 1.0 - float(np.prod(1.0 - k / np.arange(wrong + 1, num_samples + 1)))


def majority(samples: Samples) -> float:
    """The accuracy of the answer that most samples give; the mean over those that share the lead. Samples without an answer do not vote,
    and 0 where none does."""
    votes: dict[str, list[float]] = {}
    for answer, accuracy in zip(samples.answers, samples.accuracies):
        if answer is not None:
            votes.setdefault(answer, []).append(accuracy)
    most = max(map(len, votes.values()), default=0)
    leading = [float(np.mean(scores)) for scores in votes.values() if len(scores) == most]
    return float(np.mean(leading)) if leading else 0.0


def ks(num_samples: int) -> list[int]:
    """The k of pass@k that are reported: 1, 2, 4, ... and all."""
    return sorted({2**power for power in range(num_samples.bit_length()) if 2**power < num_samples} | {num_samples})


def estimates(prompts: Sequence[Samples]) -> dict[str, Estimate]:
    """`avg_at_n`, `pass_at_k` for each of `ks`, and `maj_at_n` where some sample has an answer; n: samples of a prompt, of the fewest.

    With accuracies of 0 and 1 only, pass_at_1 is avg_at_n.
    """
    n = min(len(prompt.accuracies) for prompt in prompts)
    correct = [sum(accuracy >= 1 for accuracy in prompt.accuracies) for prompt in prompts]
    measures = {f"avg_at_{n}": [float(np.mean(prompt.accuracies)) for prompt in prompts]}
    for k in ks(n):
        measures[f"pass_at_{k}"] = [pass_at_k(len(prompt.accuracies), c, k) for prompt, c in zip(prompts, correct)]
    if n > 1 and any(answer is not None for prompt in prompts for answer in prompt.answers):
        measures[f"maj_at_{n}"] = [majority(prompt) for prompt in prompts]
    values_PM = np.array(list(measures.values())).T
    low_M, high_M = bootstrap(values_PM) if len(prompts) > 1 else (None, None)
    return {
        name: Estimate(
            float(values_PM[:, m].mean()), None if low_M is None else float(low_M[m]), None if high_M is None else float(high_M[m])
        )
        for m, name in enumerate(measures)
    }


def bootstrap(values_PM: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The ends [M] of the interval of each column's mean; the same for the same values.

    Where every prompt has 0, or every prompt 1, drawing again tells nothing: then the exact binomial bounds of Clopper and Pearson, 1934.
    """
    rng, num_prompts = np.random.default_rng(seed), len(values_PM)
    means = np.array([values_PM[rng.integers(num_prompts, size=num_prompts)].mean(0) for _ in range(NUM_RESAMPLES)])
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    exact = ((1 - CONFIDENCE) / 2) ** (1 / num_prompts)
    return np.where((values_PM == 1).all(0), exact, low), np.where((values_PM == 0).all(0), 1 - exact, high)
