"""The whole model on packed sequences against the same sequences one by one: log-probs, and the gradient of every parameter."""

from dataclasses import replace

import numpy as np
import pytest

from tandem.config.schema import ParallelConfig
from tandem.data.types import Prompt, Row, Sequence
from tandem.engine.fork_ranks import fork_each, fork_ranks
from tandem.errors import RunError
from tandem.qwen3_5.gated_delta import CPU_CHUNK
from tests.engine.layouts import LAYOUTS

PACKED, ONE_BY_ONE = {"max_tokens_per_device": 4096}, {"micro_batch_size": 1}
CHUNK = CPU_CHUNK  # of the delta rule


def text_sequence(num_tokens: int, seed: int = 0) -> Sequence:
    """Random tokens; half of them are the response, of a single token it is none."""
    rng, num_response = np.random.default_rng([seed, num_tokens]), num_tokens // 2
    ids = rng.integers(0, 256, num_tokens)
    position_ids = np.broadcast_to(np.arange(num_tokens - num_response), (3, num_tokens - num_response))
    row = Row(f"test.parquet:{num_tokens}", "test", [], [], "7", {})
    prompt = Prompt(row, ids[: num_tokens - num_response], position_ids, num_tokens - num_response, None, None, "")
    return Sequence(prompt, ids[num_tokens - num_response :])


def weighted(sequences: list[Sequence]) -> list[Sequence]:
    """With the weights of a mean over all response tokens."""
    total = sum(len(s.response_ids) for s in sequences)
    return [replace(s, fields={"weights": np.full(len(s.response_ids), 1 / total, np.float32)}) for s in sequences]


NEIGHBOURS = {"before": [text_sequence(5), text_sequence(90)], "after": [None, text_sequence(CHUNK, seed=1)]}  # None: a row with images
IMAGES = {  # layout, which of two micro-batches has an image
    "dp2_none": ("dp2", False),
    "dp2_one_rank": ("dp2", True),
    "pp2_none": ("pp2", False),
    "tp2_cp2_ep2_one_micro_batch": ("tp2_cp2_ep2", True),
}


@pytest.fixture(scope="module")
def results(tiny_model, sequences) -> dict:
    """What the ranks of every case gave, from one start of Python. Keys: case, variants."""
    lengths = (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 1)
    mixed = weighted([sequences[2], *map(text_sequence, lengths), sequences[1], sequences[7]])  # rows with two images and with one
    calls = {}
    for form, batch in {"packed": PACKED, "one by one": ONE_BY_ONE}.items():
        for function in ("score", "gradients"):
            calls[function, form] = (function, "single", {"sequences": mixed, "batch": batch})
    for which, (first, last) in NEIGHBOURS.items():
        kept = weighted([first or sequences[2], text_sequence(CHUNK + 1), sequences[1], last])
        for layout in ("single", "cp2"):
            calls["neighbours", which, layout] = ("score", layout, {"sequences": kept, "batch": PACKED})
    for freeze in (False, True):
        settings = {"num_steps": 2, "lr": 1e-3, "model": {"dtype": "float32", "freeze_vision": freeze}, "batch": ONE_BY_ONE}
        for case, (layout, one_image) in IMAGES.items():
            call = settings | {"sequences": weighted([text_sequence(40), sequences[1] if one_image else text_sequence(41)])}
            calls["images", case, freeze] = ("score_and_train", layout, call)
            calls["images", one_image, freeze] = ("score_and_train", "single", call)
    shares = fork_each(
        [
            (
                f"tests.engine.ranks:{function}",
                ParallelConfig(**LAYOUTS[layout][1]),
                LAYOUTS[layout][0],
                {"model_path": str(tiny_model), **call},
            )
            for function, layout, call in calls.values()
        ]
    )
    return dict(zip(calls, shares))


def logprobs(shares: list[dict]) -> list[np.ndarray]:
    scored = {index: values[0] for share in shares for index, values in share.items()}
    return [scored[index] for index in range(len(scored))]


def test_packed_log_probs_are_those_of_one_by_one(results):
    """Text of one token, two, around one chunk and around two, next to rows with images."""
    packed, single = (logprobs(results["score", form]) for form in ("packed", "one by one"))
    assert len(packed) == 11
    assert max(np.abs(a - b).max(initial=0) for a, b in zip(packed, single)) <= 1e-5


def test_every_parameter_s_gradient_on_packed_sequences_is_that_of_one_by_one(results):
    [packed], [single] = (results["gradients", form] for form in ("packed", "one by one"))
    assert packed.keys() == single.keys() and len(packed) > 100
    for name, right in single.items():
        assert np.abs(packed[name] - right).max() <= 1e-4 * np.abs(right).max(), name
    without = {name.split(".")[-3] for name, right in single.items() if not right.any()}
    assert not without - {str(expert) for expert in range(8)}, "only an expert that no token chose may lack a gradient"


@pytest.mark.parametrize("layout", ["single", "cp2"])
def test_another_neighbour_does_not_change_a_sequence(layout, results):
    before, after = (logprobs(results["neighbours", which, layout])[1:3] for which in NEIGHBOURS)
    for a, b in zip(before, after):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", IMAGES)
@pytest.mark.parametrize("freeze", [False, True], ids=["trained", "frozen"])
def test_ranks_and_micro_batches_without_an_image_train_like_the_rest(case, freeze, results):
    """Where the tower sees nothing it must neither hang its peers nor change their gradient norm."""
    [single] = results["images", IMAGES[case][1], freeze]
    for share in results["images", case, freeze]:
        for step, right in zip(share["steps"], single["steps"]):
            assert step["grad_norm"] == pytest.approx(right["grad_norm"], rel=1e-4)


def test_video_tokens_are_refused_by_name(tiny_model):
    from transformers import AutoConfig

    video = AutoConfig.from_pretrained(tiny_model).video_token_id
    sequence = text_sequence(20)
    with_video = replace(sequence, prompt=replace(sequence.prompt, token_ids=np.append(sequence.prompt.token_ids[:-1], video)))
    call = {"model_path": str(tiny_model), "sequences": weighted([with_video])}
    with pytest.raises(RunError, match="a sequence holds video tokens"):
        fork_ranks("tests.engine.ranks:score", ParallelConfig(), 1, **call)
