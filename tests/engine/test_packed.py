"""The whole model on packed sequences against the same sequences one by one: log-probs, and the gradient of every parameter."""

from dataclasses import replace

import numpy as np
import pytest

from tandem.config.schema import ParallelConfig
from tandem.data.types import Prompt, Row, Sequence
from tandem.engine.fork_ranks import fork_ranks
from tandem.errors import RunError
from tests.engine.layouts import LAYOUTS

PACKED, ONE_BY_ONE = {"max_tokens_per_device": 4096}, {"micro_batch_size": 1}
CHUNK = 64  # of the delta rule


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


def run(function: str, folder, sequences: list[Sequence], layout: str = "single", **sections) -> list:
    world_size, sizes = LAYOUTS[layout]
    call = {"model_path": str(folder), "sequences": sequences, **sections}
    return fork_ranks(f"tests.engine.ranks:{function}", ParallelConfig(**sizes), world_size, **call)


def logprobs(model, sequences: list[Sequence], layout: str = "single", **sections) -> list[np.ndarray]:
    scored = {index: values[0] for share in run("score", model, sequences, layout, **sections) for index, values in share.items()}
    return [scored[index] for index in range(len(sequences))]


@pytest.fixture(scope="module")
def mixed(sequences) -> list[Sequence]:
    """Text of one token, two, around one chunk and around two, next to rows with one and with two images."""
    lengths = (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1)
    return weighted([sequences[2], *map(text_sequence, lengths), sequences[1], sequences[7]])


def test_packed_log_probs_and_every_parameter_s_gradient_are_those_of_one_by_one(tiny_model, mixed):
    packed, single = (logprobs(tiny_model, mixed, batch=batch) for batch in (PACKED, ONE_BY_ONE))
    assert max(np.abs(a - b).max(initial=0) for a, b in zip(packed, single)) <= 1e-5
    [packed], [single] = (run("gradients", tiny_model, mixed, batch=batch) for batch in (PACKED, ONE_BY_ONE))
    assert packed.keys() == single.keys() and len(packed) > 100
    for name, right in single.items():
        assert np.abs(packed[name] - right).max() <= 1e-4 * np.abs(right).max(), name
    without = {name.split(".")[-3] for name, right in single.items() if not right.any()}
    assert not without - {str(expert) for expert in range(8)}, "only an expert that no token chose may lack a gradient"


@pytest.mark.parametrize("layout", ["single", "cp2"])
def test_another_neighbour_does_not_change_a_sequence(layout, tiny_model, sequences):
    kept = [text_sequence(CHUNK + 1), sequences[1]]
    before, after = [text_sequence(5), text_sequence(90)], [sequences[2], text_sequence(CHUNK, seed=1)]
    found = []
    for first, last in (before, after):
        found.append(logprobs(tiny_model, weighted([first, *kept, last]), layout, batch=PACKED)[1:3])
    for a, b in zip(*found):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("layout", "images"),
    [("dp2", "none"), ("dp2", "one rank"), ("pp2", "none"), ("tp2_cp2_ep2", "one of two micro-batches")],
    ids=lambda x: x.replace(" ", "_"),
)
@pytest.mark.parametrize("freeze", [False, True], ids=["trained", "frozen"])
def test_ranks_and_micro_batches_without_an_image_train_like_the_rest(layout, images, freeze, tiny_model, sequences):
    """Where the tower sees nothing it must neither hang its peers nor change their gradient norm."""
    texts = [text_sequence(40), text_sequence(41)]
    batch = weighted(texts if images == "none" else [texts[0], sequences[1]])
    settings = {"num_steps": 2, "lr": 1e-3, "model": {"dtype": "float32", "freeze_vision": freeze}, "batch": ONE_BY_ONE}
    [single] = run("score_and_train", tiny_model, batch, **settings)
    for share in run("score_and_train", tiny_model, batch, layout, **settings):
        for step, right in zip(share["steps"], single["steps"]):
            assert step["grad_norm"] == pytest.approx(right["grad_norm"], rel=1e-4)


def test_video_tokens_are_refused_by_name(tiny_model):
    from transformers import AutoConfig

    video = AutoConfig.from_pretrained(tiny_model).video_token_id
    sequence = text_sequence(20)
    with_video = replace(sequence, prompt=replace(sequence.prompt, token_ids=np.append(sequence.prompt.token_ids[:-1], video)))
    with pytest.raises(RunError, match="a sequence holds video tokens"):
        logprobs(tiny_model, weighted([with_video]))
