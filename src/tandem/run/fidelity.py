"""Does the trainer agree with the generator about the samples' log-probs? Measured at every step, right after a publication."""

import numpy as np

from tandem.algorithms.corrections import correction_weights, effective_share
from tandem.config.schema import CorrectionConfig, FidelityConfig
from tandem.errors import RunError
from tandem.run.samples import Sample

PARTS = ("first", "middle", "last")  # thirds of a response


def differences(samples: list[Sample]) -> list[np.ndarray]:
    """log p(trainer) - log p(generator) of each sample's response, [R] float64."""
    return [np.asarray(s.trainer_logprobs, np.float64) - s.completion.logprobs for s in samples]


def fidelity(samples: list[Sample]) -> dict[str, float]:
    """Over all response tokens, with d = log p(trainer) - log p(generator): |d|, the error of the probability ratio |exp(d) - 1|, and
    k1 = -d and k3 = exp(d) - 1 - d, estimators of KL(generator || trainer) on the generator's own samples (Schulman 2020, "Approximating KL
    divergence"). The mean of |d| also apart for rows with images and without, and for thirds of the responses."""
    each = differences(samples)
    d = np.concatenate(each)
    metrics = {
        "fidelity/logprob_abs_diff_mean": float(np.abs(d).mean()),
        "fidelity/logprob_abs_diff_max": float(np.abs(d).max()),
        "fidelity/ratio_abs_error_mean": float(np.abs(np.expm1(d)).mean()),
        "fidelity/kl_k1": float(-d.mean()),
        "fidelity/kl_k3": float((np.expm1(d) - d).mean()),
    }
    return metrics | {f"fidelity/logprob_abs_diff_mean_{part}": mean for part, mean in by_part(samples, each).items()}


def of_update(metrics: dict[str, float]) -> dict[str, float]:
    """The same figures, as far as there are, from an on-policy update whose old log-probs are the generator's."""
    return {
        "fidelity/logprob_abs_diff_mean": metrics["ratio/log_abs_mean"],
        "fidelity/ratio_abs_error_mean": metrics["ratio/abs_diff_mean"],
        "fidelity/kl_k1": metrics["kl/old_k1"],
        "fidelity/kl_k3": metrics["kl/old"],
    }


def by_part(samples: list[Sample], each: list[np.ndarray]) -> dict[str, float]:
    """Mean |d| of the tokens of each kind of row and each third of the responses, as far as there are such."""
    parts: dict[str, list[np.ndarray]] = {}
    for sample, d in zip(samples, each):
        parts.setdefault("vision" if sample.prompt.row.images else "text", []).append(d)
        for name, third in zip(PARTS, np.array_split(d, 3)):
            parts.setdefault(name, []).append(third)
    joined = {name: np.concatenate(values) for name, values in parts.items()}
    return {name: float(np.abs(values).mean()) for name, values in joined.items() if len(values)}


def check_fidelity(metrics: dict[str, float], samples: list[Sample], limits: FidelityConfig) -> None:
    """Raises RunError, with where the difference lies, when a figure passes its limit (0: no limit) or is not a number."""
    for key, name, limit in (
        ("max_logprob_abs_diff_mean", "logprob_abs_diff_mean", limits.max_logprob_abs_diff_mean),
        ("max_logprob_abs_diff_max", "logprob_abs_diff_max", limits.max_logprob_abs_diff_max),
        ("max_kl_k3", "kl_k3", limits.max_kl_k3),
    ):
        value = metrics.get(f"fidelity/{name}", np.nan)
        if limit and not value <= limit:  # a NaN is not <=
            raise RunError(
                f"trainer and generator disagree: {name} {value:.3e}, limit {limit:.1e} (fidelity.{key})",
                "the generator samples from other weights, stale caches, or another arithmetic than the trainer's, so the policy would "
                f"learn from samples it did not make\n{diagnosis(samples)}",
                "look at the versions above and at logs/generator_*.log; with bfloat16 a higher limit or algorithm.correction may be right",
            )


def diagnosis(samples: list[Sample]) -> str:
    """Which rows, positions and versions the difference lies in."""
    if any(sample.trainer_logprobs is None for sample in samples):
        return "    algorithm.old_logprobs=trainer would show which rows and positions differ"
    each = differences(samples)
    sizes = [np.abs(d) for d in each]
    parts = ", ".join(f"{name} {value:.2e}" for name, value in by_part(samples, each).items())
    versions = sorted({s.completion.version for s in samples})
    by_version = ", ".join(
        f"{v}: {np.concatenate([d for d, s in zip(sizes, samples) if s.completion.version == v]).mean():.2e}" for v in versions
    )
    worst = sorted(range(len(samples)), key=lambda i: -float(sizes[i].mean() if len(sizes[i]) else 0.0))[:5]
    rows = "\n".join(f"    {_place_of(samples[i], sizes[i])}" for i in worst)
    bias = f"mean d {float(np.concatenate(each).mean()):+.2e} (far from 0: other weights; near it: noise)"
    return f"    mean |d| by part: {parts}\n    by version: {by_version}\n    {bias}\n{rows}"


def _place_of(sample: Sample, size_R: np.ndarray) -> str:
    where = f"largest {size_R.max():.2e} at response token {int(size_R.argmax())} of {len(size_R)}"
    return f"{sample.prompt.row.id} sample {sample.number}: mean {size_R.mean():.2e}, {where}, version {sample.completion.version}"


def correct(samples: list[Sample], settings: CorrectionConfig) -> dict[str, float]:
    """Multiply the samples' advantages by their corrections. Returns metrics; none when nothing is corrected."""
    if settings.kind == "none":
        return {}
    weights = correction_weights([s.trainer_logprobs for s in samples], [s.completion.logprobs for s in samples], settings)
    for sample, weight in zip(samples, weights):
        sample.fields["advantages"] = sample.fields["advantages"] * weight
    every = np.concatenate(weights)
    return {
        "correction/effective_share": effective_share(every),
        "correction/weight_mean": float(every.mean()),
        "correction/bounded_share": float(np.mean(every == settings.max) if settings.kind == "truncated" else np.mean(every == 0)),
    }


def check_reference(old_logprobs: list[np.ndarray], ref_logprobs: list[np.ndarray], limits: FidelityConfig) -> None:
    """Before the first update policy and reference are the same weights; raises RunError when their log-probs are not (0: no limit)."""
    difference = float(np.abs(np.concatenate(old_logprobs) - np.concatenate(ref_logprobs)).mean())
    if limits.max_kl_ref_at_start and not difference <= limits.max_kl_ref_at_start:
        raise RunError(
            f"policy and reference differ before the first update: mean |Δ log-prob| {difference:.2e}",
            "they are the same weights then, so one of them was loaded or scored wrongly",
            "report this with logs/; fidelity.max_kl_ref_at_start sets the limit",
        )
