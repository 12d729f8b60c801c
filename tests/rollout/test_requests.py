"""From the prompts of a step to requests."""

import numpy as np

from tandem.data.types import Prompt, Row
from tandem.rollout.types import SamplingParams, requests_of


def prompt_of(row_id: str) -> Prompt:
    row = Row(row_id, "test", [{"role": "user", "content": "1 + 1"}], [], "2", {})
    return Prompt(row, np.arange(3), np.tile(np.arange(3), (3, 1)), 3, None, None, "")


def test_a_row_that_comes_twice_is_not_sampled_twice_with_the_same_seed():
    requests = requests_of([prompt_of(name) for name in ("a", "b", "a", "a")], SamplingParams(seed=7, num_samples=2))
    assert [request.prompt.row.id for request in requests] == ["a", "b", "a", "a"]
    assert [request.sampling.seed for request in requests] == [7, 7, 7 + 2**32, 7 + 2**33]
    assert all(request.sampling.num_samples == 2 for request in requests)
