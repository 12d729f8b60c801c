"""3-axis rope positions against transformers' own, and against the rule written out for one small image."""

import numpy as np
import pytest
import torch

from tandem.data.positions import rope_positions
from tests.data.files import encoded, picture, row

PAD = 9


@pytest.fixture(scope="module")
def reference(tiny_model):
    """transformers' get_rope_index and the config it reads."""
    from transformers import AutoConfig
    from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeModel

    config = AutoConfig.from_pretrained(tiny_model)
    with torch.device("meta"):
        model = Qwen3_5MoeModel(config)

    def positions(token_ids: np.ndarray, grid: np.ndarray | None) -> tuple[np.ndarray, int]:
        ids = torch.from_numpy(token_ids)[None]
        grid = None if grid is None else torch.from_numpy(grid)
        found, delta = model.get_rope_index(ids, (ids == config.image_token_id).int(), grid)
        return found[:, 0].numpy(), int(delta) + len(token_ids)

    return positions


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("What is the area?", []),
        ("<image>What is the area?", [(48, 32)]),
        ("What <image> is it?", [(16, 96)]),
        ("<image>", [(16, 16)]),
        ("<image><image>Which is larger?", [(32, 80), (64, 16)]),
        ("Is <image> the same as <image>?", [(48, 48), (112, 16)]),
        ("<image> 1 <image> 2 <image> 3", [(16, 48), (96, 32), (16, 16)]),
    ],
)
def test_positions_of_a_prompt_are_those_of_transformers(builder_with, reference, text, sizes):
    images = [encoded(picture(width, height)) for width, height in sizes]
    prompt = builder_with().build(row(text, images))
    if sizes:  # a token stands for 16 x 16 pixels: not everything was resized to one shape
        assert (prompt.image_grid_thw[:, 1:] * 8).tolist() == [[height, width] for width, height in sizes]
    expected, following = reference(prompt.token_ids, prompt.image_grid_thw)
    assert prompt.position_ids.dtype == np.int64
    assert np.array_equal(prompt.position_ids, expected)
    assert prompt.next_position == following


def test_the_response_goes_on_where_transformers_would(builder_with, reference):
    from tandem.data.types import Sequence

    prompt = builder_with().build(row("<image>What is it?", [encoded(picture(112, 16))]))
    sequence = Sequence(prompt, np.array([65, 66, 67]))
    assert np.array_equal(sequence.position_ids, reference(sequence.token_ids, prompt.image_grid_thw)[0])


def test_an_image_of_two_by_three_tokens_written_out():
    ids = np.array([1, 2, *[PAD] * 6, 3, 4])
    positions, following = rope_positions(ids, PAD, np.array([[1, 4, 6]]), merge_size=2)
    assert positions.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],  # time stands still
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],  # row by row
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],  # column by column; the text goes on after max(2, 3)
    ]
    assert following == 7


def test_a_prompt_that_ends_with_an_image_goes_on_after_it():
    positions, following = rope_positions(np.array([PAD] * 2), PAD, np.array([[1, 2, 4]]), merge_size=2)
    assert positions.tolist() == [[0, 0], [0, 0], [0, 1]]
    assert following == 2


@pytest.mark.parametrize(
    ("num_pads", "grid"),
    [
        (3, [[1, 4, 4]]),  # one pad too few
        (5, [[1, 4, 4]]),  # one too many
        (4, None),  # pads without an image
        (0, [[1, 4, 4]]),  # an image without pads
        (8, [[1, 4, 4], [1, 4, 4]]),  # two images run together: their borders are gone
    ],
)
def test_pads_that_are_not_those_of_the_images_are_refused(num_pads, grid):
    ids = np.array([1, *[PAD] * num_pads, 2])
    with pytest.raises(ValueError, match="runs of image pads"):
        rope_positions(ids, PAD, None if grid is None else np.array(grid), merge_size=2)


def test_no_token_is_no_position():
    positions, following = rope_positions(np.zeros(0, np.int64), PAD, None, merge_size=2)
    assert positions.shape == (3, 0) and following == 0
