"""Does the trainer agree with the generator about the samples' log-probs? Measured at every step, right after a publication."""

import numpy as np

from tandem.config.schema import FidelityConfig
from tandem.errors import RunError
from tandem.run.samples import Sample


def fidelity(samples: list[Sample]) -> dict[str, float]:
    """Means over all response tokens. With d = log p(trainer) - log p(generator): |d|, k1 = -d and k3 = exp(d) - 1 - d, the estimators of
    KL(generator || trainer) on the generator's own samples (Schulman 2020, "Approximating KL divergence")."""
    d = np.concatenate([s.fields["old_logprobs"] - s.completion.logprobs for s in samples]).astype(np.float64)
    return {
        "fidelity/logprob_abs_diff_mean": float(np.abs(d).mean()),
        "fidelity/logprob_abs_diff_max": float(np.abs(d).max()),
        "fidelity/kl_k1": float(-d.mean()),
        "fidelity/kl_k3": float((np.expm1(d) - d).mean()),
    }


def check_fidelity(metrics: dict[str, float], samples: list[Sample], limits: FidelityConfig) -> None:
    """Raises RunError, with where the difference lies, when the mean passes the limit (0: no limit) or is not a number."""
    mean, limit = metrics["fidelity/logprob_abs_diff_mean"], limits.max_logprob_abs_diff_mean
    if limit == 0 or mean <= limit:  # a NaN is not <=
        return
    differences = [np.abs(s.fields["old_logprobs"] - s.completion.logprobs) for s in samples]
    worst = sorted(range(len(samples)), key=lambda i: -float(differences[i].mean()))[:5]
    rows = "\n".join(
        f"    {samples[i].prompt.row.id} sample {samples[i].number}: mean {differences[i].mean():.2e}, "
        f"largest {differences[i].max():.2e} at response token {int(differences[i].argmax())}, version {samples[i].completion.version}"
        for i in worst
    )
    by_kind = {
        kind: np.concatenate(parts).mean()
        if (parts := [d for d, s in zip(differences, samples) if bool(s.prompt.row.images) == images])
        else None
        for kind, images in (("rows with images", True), ("text rows", False))
    }
    kinds = ", ".join(f"{kind} {value:.2e}" for kind, value in by_kind.items() if value is not None)
    raise RunError(
        f"trainer and generator disagree: mean |Δ log-prob| {mean:.3e}, limit {limit:.1e}",
        "the generator samples from other weights, stale caches, or another arithmetic than the trainer's, so the policy would learn from "
        f"samples it did not make\n    {kinds}\n{rows}",
        "look at the versions above and at logs/generator_*.log; with bfloat16 a higher fidelity.max_logprob_abs_diff_mean may be right",
    )


def check_reference(old_logprobs: list[np.ndarray], ref_logprobs: list[np.ndarray], limits: FidelityConfig) -> None:
    """Before the first update policy and reference are the same weights; raises RunError when their log-probs are not (0: no limit)."""
    difference = float(np.abs(np.concatenate(old_logprobs) - np.concatenate(ref_logprobs)).mean())
    if limits.max_kl_ref_at_start and not difference <= limits.max_kl_ref_at_start:
        raise RunError(
            f"policy and reference differ before the first update: mean |Δ log-prob| {difference:.2e}",
            "they are the same weights then, so one of them was loaded or scored wrongly",
            "report this with logs/; fidelity.max_kl_ref_at_start sets the limit",
        )
