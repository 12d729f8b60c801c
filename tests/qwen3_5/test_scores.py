"""Log-probs and entropies of the vocabulary-parallel, chunked head against log_softmax of the whole, and what memory they need."""

import numpy as np
import pytest
import torch

from tandem.config.schema import ParallelConfig
from tandem.engine.fork_ranks import fork_each
from tandem.qwen3_5.scores import CHUNK_BYTES, chunk_size
from tests.qwen3_5.scores_ranks import BANNED, make_inputs


def whole(temperature: float, entropy_grad: bool) -> dict[str, np.ndarray]:
    """The definition, in float64, over all tokens and the whole vocabulary."""
    hidden, weight, target, d_scores = make_inputs(torch.float64)
    hidden.requires_grad_(), weight.requires_grad_()
    logits = hidden @ weight.t() / temperature
    allowed = [i for i in range(len(weight)) if i not in BANNED]
    logprobs = logits[:, allowed].log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    column = torch.tensor([allowed.index(t) for t in target.tolist()])
    scores = torch.stack([logprobs.gather(1, column[:, None])[:, 0], entropy if entropy_grad else entropy.detach()])
    d_hidden, d_weight = torch.autograd.grad(scores, (hidden, weight), d_scores.double())
    return {"scores": scores.detach().numpy(), "d_hidden": d_hidden.numpy(), "d_weight": d_weight.numpy()}


CASES = [(1, 1.0, False), (4, 0.7, True), (0, 0.7, False), (11, 1.3, True)]  # chunk, temperature, entropy_grad
CHUNKS = (2, 8, 16)


@pytest.fixture(scope="module")
def results() -> list[list]:
    """For each tp, of each case, what its ranks gave; then the largest tensors."""
    names = ("chunk", "temperature", "entropy_grad")
    cases = [
        ("tests.qwen3_5.scores_ranks:scores_and_gradients", ParallelConfig(tp=tp), tp, dict(zip(names, case)))
        for tp in (1, 2)
        for case in CASES
    ]
    sizes = [("tests.qwen3_5.scores_ranks:largest_tensor", ParallelConfig(), 1, {"chunk": chunk}) for chunk in CHUNKS]
    return fork_each(
        [*cases, *sizes, ("tests.qwen3_5.scores_ranks:weight_gradient_errors", ParallelConfig(), 1, {"chunks": [2048, 64, 1]})]
    )


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_scores_and_gradients_are_those_of_a_whole_log_softmax(tp, case, results):
    shares, expected = results[(tp - 1) * len(CASES) + case], whole(*CASES[case][1:])
    assert len(shares) == tp
    for share in shares:
        np.testing.assert_allclose(share["scores"], expected["scores"], rtol=0, atol=5e-6)
    d_weight = np.concatenate([share["d_weight"] for share in shares])
    for ours, right in ((sum(share["d_hidden"] for share in shares), expected["d_hidden"]), (d_weight, expected["d_weight"])):
        np.testing.assert_allclose(ours, right, rtol=0, atol=1e-5 * np.abs(right).max())


def test_no_tensor_of_tokens_times_vocabulary_exists_and_the_largest_grows_with_the_chunk(results):
    assert results[-len(CHUNKS) - 1 : -1] == [[chunk * 4096] for chunk in CHUNKS]


def test_the_bf16_weight_gradient_is_no_worse_in_many_chunks_than_in_one(results):
    [errors] = results[-1]
    whole, *small = errors
    assert 1e-4 < whole < 4e-3, "one rounding to bf16"
    assert max(small) < 1.1 * whole


def test_the_default_chunk_is_a_bound_in_bytes():
    assert chunk_size(248_320) * 248_320 * 4 <= CHUNK_BYTES < (chunk_size(248_320) + 1) * 248_320 * 4
    assert chunk_size(10**12) == 1
