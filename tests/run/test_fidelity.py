"""Figures of the fidelity gates, worked out by hand, and the page that a run stops with."""

from math import exp, log
from types import SimpleNamespace

import numpy as np
import pytest

from tandem.config.schema import CorrectionConfig, FidelityConfig
from tandem.errors import RunError
from tandem.run.canary import check_canary
from tandem.run.fidelity import check_fidelity, correct, fidelity


def sample(row: str, number: int, d: list[float], *, images: int = 0, version: int = 4) -> SimpleNamespace:
    """One whose trainer's log-probs are `d` above the generator's."""
    generator = np.linspace(-3, -1, len(d), dtype=np.float32)
    completion = SimpleNamespace(logprobs=generator, version=version)
    prompt = SimpleNamespace(row=SimpleNamespace(id=row, images=[None] * images))
    trainer = (generator.astype(np.float64) + d).astype(np.float32)
    fields = {"advantages": np.ones(len(d), np.float32)}
    return SimpleNamespace(prompt=prompt, number=number, completion=completion, trainer_logprobs=trainer, fields=fields)


def two_rows() -> list[SimpleNamespace]:
    """Ratios 2, 1/2, 1 of a text row; 1, 1, 4 of a row with an image."""
    return [sample("text:1", 0, [log(2), -log(2), 0]), sample("vision:2", 3, [0, 0, log(4)], images=1, version=3)]


def test_figures_worked_out_by_hand():
    found = fidelity(two_rows())
    expected = {
        "logprob_abs_diff_mean": 4 * log(2) / 6,
        "logprob_abs_diff_max": 2 * log(2),
        "ratio_abs_error_mean": (1 + 0.5 + 3) / 6,
        "kl_k1": -2 * log(2) / 6,  # KL(generator || trainer): log p(generator) - log p(trainer)
        "kl_k3": (2 + 0.5 + 1 + 1 + 1 + 4 - 6 - 2 * log(2)) / 6,
        "logprob_abs_diff_mean_text": 2 * log(2) / 3,
        "logprob_abs_diff_mean_vision": 2 * log(2) / 3,
        "logprob_abs_diff_mean_first": log(2) / 2,
        "logprob_abs_diff_mean_middle": log(2) / 2,
        "logprob_abs_diff_mean_last": log(2),
    }
    assert found == {f"fidelity/{name}": pytest.approx(value, abs=1e-6) for name, value in expected.items()}


def test_both_estimates_are_the_kl_of_generator_and_trainer_and_not_its_reverse():
    """A vocabulary of two tokens; each appears as often as the generator samples it."""
    generator, trainer = (0.75, 0.25), (0.5, 0.5)
    d = [log(t / g) for g, t in zip(generator, trainer)]
    found = fidelity([sample("r", 0, [d[0]] * 3 + [d[1]])])
    kl = sum(g * log(g / t) for g, t in zip(generator, trainer))
    assert found["fidelity/kl_k1"] == pytest.approx(kl, abs=1e-6) and found["fidelity/kl_k3"] == pytest.approx(kl, abs=1e-6)


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"max_logprob_abs_diff_mean": 0.4}, r"logprob_abs_diff_mean 4\.621e-01, limit 4\.0e-01"),
        ({"max_logprob_abs_diff_mean": 0.0, "max_logprob_abs_diff_max": 1.0}, r"logprob_abs_diff_max 1\.386e\+00"),
        ({"max_logprob_abs_diff_mean": 0.0, "max_kl_k3": 0.3}, r"kl_k3 3\.523e-01"),
    ],
)
def test_past_each_limit_the_run_stops_with_rows_positions_and_versions(limits, told):
    samples = two_rows()
    with pytest.raises(RunError, match=told) as caught:
        check_fidelity(fidelity(samples), samples, FidelityConfig(**limits))
    page = caught.value.why
    assert "by version: 3: 4.62e-01, 4: 4.62e-01" in page and "vision 4.62e-01" in page and "last 6.93e-01" in page
    assert "vision:2 sample 3: mean 4.62e-01, largest 1.39e+00 at response token 2 of 3, version 3" in page
    check_fidelity(fidelity(samples), samples, FidelityConfig(max_logprob_abs_diff_mean=0.47, max_logprob_abs_diff_max=1.4, max_kl_k3=0.36))


def test_what_is_no_number_passes_no_limit():
    samples = [sample("r", 0, [0.0, float("nan")])]
    with pytest.raises(RunError, match="disagree"):
        check_fidelity(fidelity(samples), samples, FidelityConfig(max_logprob_abs_diff_mean=1e9))


def test_a_correction_weighs_advantages_and_tells_what_is_left_of_the_samples():
    samples = two_rows()
    told = correct(samples, CorrectionConfig(kind="icepop", min=0.6, max=2.5))
    assert [s.fields["advantages"].tolist() for s in samples] == [pytest.approx([2, 0, 1]), pytest.approx([1, 1, 0])]
    weights = [2, 0, 1, 1, 1, 0]
    assert told["correction/effective_share"] == pytest.approx(sum(weights) ** 2 / (6 * sum(w * w for w in weights)))
    assert told["correction/weight_mean"] == pytest.approx(5 / 6) and told["correction/bounded_share"] == pytest.approx(2 / 6)
    assert correct(two_rows(), CorrectionConfig()) == {}
    told = correct(two_rows(), CorrectionConfig(kind="truncated", max=exp(1)))
    assert told["correction/bounded_share"] == pytest.approx(1 / 6), "the ratio of 4"


def test_the_canary_names_the_engine_whose_log_probs_are_not_the_trainers():
    heard = [[SimpleNamespace(logprobs=np.full(2, -1.0), version=5)] for _ in range(2)]
    scored = [np.full(2, -1.0), np.array([-1.0, -1.5]), np.full(2, -9.0)]  # the last only fills up
    limits = FidelityConfig(max_logprob_abs_diff_mean=0.2)
    with pytest.raises(RunError, match=r"generator 1 does not generate .* 2\.500e-01"):
        check_canary(heard, scored, ["generator 0", "generator 1"], limits)
    assert check_canary(heard, scored, ["a", "b"], FidelityConfig(max_logprob_abs_diff_mean=0.3)) == [0.0, 0.25]
