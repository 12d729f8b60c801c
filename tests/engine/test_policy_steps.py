"""Policy losses and averages in the training engine: no cut of a mini-batch, over micro-batches or ranks, changes loss, KL or gradient."""

import math
import re

import numpy as np
import pytest

from tandem.algorithms.aggregation import token_weights
from tandem.config.schema import ParallelConfig
from tandem.data.types import Sequence
from tandem.engine.fork_ranks import fork_each

ONE_BY_ONE, SOME, ALL = {"micro_batch_size": 1}, {"max_tokens_per_device": 200}, {"max_tokens_per_device": 100_000}
LAYOUTS = {  # ranks, sizes, cuts into micro-batches
    "single": (1, {}, {"all": ALL, "one by one": ONE_BY_ONE}),
    "dp2": (2, {}, {"some": SOME}),
    "cp2": (2, {"cp": 2}, {"some": SOME}),
}
CUTS = [(layout, cut) for layout, (_, _, cuts) in LAYOUTS.items() for cut in cuts]
EXTRAS = {"kl": {"coef": 0.3, "kind": "k3"}, "entropy_coef": 0.1}
ALGORITHMS = {  # settings, how tokens are averaged
    "ppo_clip token_mean": ({"loss": "ppo_clip", **EXTRAS}, "token_mean"),
    "ppo_clip constant": ({"loss": "ppo_clip"}, "constant"),
    "ppo_clip sequence_mean": ({"loss": "ppo_clip"}, "sequence_mean"),
    "gspo sequence_mean": ({"loss": "gspo", **EXTRAS}, "sequence_mean"),
    "gmpo token_mean": ({"loss": "gmpo"}, "token_mean"),
    "cispo constant": ({"loss": "cispo"}, "constant"),
}
LIMIT = 64  # data.max_response_length, for the constant average

pytestmark = pytest.mark.parallel


def mini_batch(sequences: list[Sequence], mode: str) -> list[Sequence]:
    """The sequences with an advantage each, old and reference log-probs near log p = -5, and weights of the whole mini-batch."""
    rng = np.random.default_rng(3)
    weights = token_weights(np.array([len(s.response_ids) for s in sequences]), mode, LIMIT)
    made = []
    for sequence, weight in zip(sequences, weights):
        n = len(sequence.response_ids)
        old, ref = rng.normal(-5, 0.5, (2, n))
        fields = {"weights": np.full(n, weight), "advantages": np.full(n, rng.normal()), "old_logprobs": old, "ref_logprobs": ref}
        made.append(Sequence(sequence.prompt, sequence.response_ids, {k: v.astype(np.float32) for k, v in fields.items()}))
    return made


@pytest.fixture(scope="module")
def measured(tiny_model, sequences) -> dict[str, list[dict]]:
    batches = {name: (settings, mini_batch(sequences, mode)) for name, (settings, mode) in ALGORITHMS.items()}
    calls = [
        (
            "tests.engine.policy_ranks:policy_steps",
            ParallelConfig(**sizes),
            ranks,
            {"model_path": str(tiny_model), "batches": batches, "cuts": cuts},
        )
        for ranks, sizes, cuts in LAYOUTS.values()
    ]
    return dict(zip(LAYOUTS, fork_each(calls)))


def whole(shares: list[dict], cut: str, algorithm: str) -> dict[str, float]:
    """The ranks' shares put together, as the run's own group does."""
    shares = [share[cut] for share in shares]
    names = set().union(*(share[algorithm] for share in shares)) - {"grad_norm", "update_ok"}
    sums = {name: sum(share[algorithm].get(name, 0.0) for share in shares) for name in names}
    return sums | {"grad_norm": shares[0][algorithm]["grad_norm"]}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("layout", "cut"), CUTS[1:])
def test_no_cut_of_a_mini_batch_changes_loss_or_gradient(layout, cut, algorithm, measured):
    right, ours = whole(measured["single"], "all", algorithm), whole(measured[layout], cut, algorithm)
    assert ours.keys() == right.keys() and right["grad_norm"] > 1e-3
    for name, value in right.items():
        assert ours[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("mode", ["token_mean", "sequence_mean", "constant"])
def test_the_loss_is_the_average_over_single_tokens_that_its_name_says(mode, measured, sequences):
    """Against a loop over the scores of each sequence."""
    batch, scores = mini_batch(sequences, mode), measured["single"][0]["scores"]
    of_sequences = []
    for index, sequence in enumerate(batch):
        a, values = float(sequence.fields["advantages"][0]), []
        for new, old in zip(scores[index][0].tolist(), sequence.fields["old_logprobs"].tolist()):
            ratio = math.exp(new - old)
            values.append(-min(ratio * a, min(max(ratio, 0.8), 1.2) * a))
        of_sequences.append(values)
    expected = {
        "token_mean": sum(map(sum, of_sequences)) / sum(map(len, of_sequences)),
        "sequence_mean": sum(sum(values) / len(values) for values in of_sequences) / len(of_sequences),
        "constant": sum(map(sum, of_sequences)) / LIMIT / len(of_sequences),
    }[mode]
    assert whole(measured["single"], "all", f"ppo_clip {mode}")["loss/policy"] == pytest.approx(expected, rel=1e-4)


def test_weight_decay_spares_norms_biases_and_decay_rates(measured):
    """Without gradients a step only decays."""
    moved = measured["single"][0]["decay"]
    spared = re.compile(r"norm\d?\.(weight|bias)$|\.bias$|\.A_log$|\.dt_bias$|layernorm\.weight$")
    for name, change in moved.items():
        assert change == pytest.approx(0.0 if spared.search(name) else 0.01, abs=1e-6), name
    assert any(name.endswith("A_log") for name in moved) and any(name.endswith("in_proj_qkv.weight") for name in moved)
