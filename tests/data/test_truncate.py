"""Shortening an over-long prompt: which text goes, and that images and template never do."""

import numpy as np
import pytest

from tandem.data.truncate import keep_indices
from tandem.errors import UserError
from tests.data.files import encoded, picture, row

WORDS = "a b c d e f g h i j"  # after the first letter, each with its space is one or two tokens of the tiny vocabulary


def kept(words: list[str], added: list[str], num_drop: int, how: str) -> list[str] | None:
    indices = keep_indices(words, np.isin(words, added), num_drop, how)
    return None if indices is None else [words[i] for i in indices]


PROMPT = ["<|im_start|>", "user", "Ċ", "1", "2", "<|vision_start|>", "P", "P", "<|vision_end|>", "3", "4", "<|im_end|>", "Ċ"]
PROMPT += ["<|im_start|>", "assistant", "Ċ", "<think>", "Ċ"]
ADDED = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "P", "<think>"]


@pytest.mark.parametrize(
    ("how", "num_drop", "gone"),
    [
        ("left", 1, "1"),
        ("left", 3, "123"),
        ("right", 1, "4"),
        ("right", 3, "234"),
        ("middle", 2, "23"),
        ("middle", 4, "1234"),
        ("left", 0, ""),
    ],
)
def test_only_text_of_the_message_goes(how, num_drop, gone):
    assert kept(PROMPT, ADDED, num_drop, how) == [word for word in PROMPT if word not in [*gone]]


@pytest.mark.parametrize("how", ["left", "right", "middle"])
def test_more_than_all_the_text_cannot_go(how):
    assert kept(PROMPT, ADDED, 5, how) is None


def test_line_breaks_and_roles_inside_a_message_are_text_but_a_header_is_not():
    turn = ["<|im_start|>", "system", "Ċ", "user", "Ċ", "x", "<|im_end|>", "Ċ", "<|im_start|>", "user", "Ċ", "y", "<|im_end|>", "Ċ"]
    assert kept(turn, ["<|im_start|>", "<|im_end|>"], 4, "left") == [w for i, w in enumerate(turn) if i not in (3, 4, 5, 11)]


@pytest.mark.parametrize("how", ["left", "right", "middle"])
@pytest.mark.parametrize("num_drop", [1, 4, 9])
def test_a_shortened_prompt_has_the_limit_s_length_and_whole_images(builder_with, how, num_drop):
    images = [encoded(picture(48, 32)), encoded(picture(16, 64, seed=1))]
    whole = builder_with().build(row(f"<image>{WORDS}<image>{WORDS}", images))
    limit = len(whole.token_ids) - num_drop
    builder = builder_with(max_prompt_length=limit, truncation=how, filter_overlong=False)
    prompt = builder.shorten(whole)
    assert len(prompt.token_ids) == limit
    text, full = (builder.tokenizer.decode(p.token_ids) for p in (prompt, whole))
    pads = "<|vision_start|>" + "<|image_pad|>"
    assert (text.count(pads + 5 * "<|image_pad|>"), text.count("<|image_pad|>")) == (1, 10)
    assert text.startswith("<|im_start|>user\n<|vision_start|>") and text.endswith("<|im_end|>\n<|im_start|>assistant\n<think>\n")
    first, second = (part.split("<|vision_start|>")[0] for part in text.split("<|vision_end|>")[1:])
    second = second.split("<|im_end|>")[0]
    assert {
        "left": WORDS.endswith(first) and second == WORDS,
        "right": first == WORDS and WORDS.startswith(second),
        "middle": WORDS.startswith(first) and WORDS.endswith(second),
    }[how]
    assert text != full and prompt.pixel_values is whole.pixel_values and prompt.prefill == whole.prefill


@pytest.mark.parametrize("how", ["left", "right", "middle"])
def test_positions_are_those_of_the_shortened_tokens(builder_with, how):
    image = encoded(picture(64, 32))
    whole = builder_with().build(row(f"{WORDS}<image>{WORDS}", [image]))
    prompt = builder_with(max_prompt_length=len(whole.token_ids) - 5, truncation=how).shorten(whole)
    is_image = prompt.token_ids == builder_with().image_token_id
    start, width = int(is_image.argmax()), 4  # an image of 2 x 4 tokens, so what follows it goes on after 4
    expected = np.arange(len(prompt.token_ids))
    expected[start + 8 :] -= 8 - width
    assert prompt.position_ids[0][~is_image].tolist() == expected[~is_image].tolist()
    assert (prompt.position_ids[0][is_image] == start).all()
    assert prompt.position_ids[2][is_image].tolist() == [start, start + 1, start + 2, start + 3] * 2
    assert prompt.next_position == len(prompt.token_ids) - 4


def test_error_refuses_and_a_prompt_at_the_limit_is_left_alone(builder_with):
    whole = builder_with().build(row(WORDS))
    size = len(whole.token_ids)
    assert builder_with(max_prompt_length=size, truncation="error").shorten(whole) is whole
    with pytest.raises(UserError) as caught:
        builder_with(max_prompt_length=size - 1, truncation="error").shorten(whole)
    assert caught.value.what == f"row test.parquet:0 has {size} tokens, data.max_prompt_length is {size - 1}"
    assert caught.value.why == "data.truncation is error"


@pytest.mark.parametrize("how", ["left", "right", "middle"])
def test_an_image_that_does_not_fit_is_refused_not_cut(builder_with, how):
    whole = builder_with().build(row("<image>1 2", [encoded(picture(96, 96))]))
    with pytest.raises(UserError, match="without all its text it would still be longer"):
        builder_with(max_prompt_length=40, truncation=how).shorten(whole)


@pytest.mark.parametrize("how", ["left", "right", "middle"])
def test_every_length_down_to_no_text_keeps_the_turn_well_formed(builder_with, how):
    before = [
        {"role": "system", "content": "Be brief.\nuser\n角度"},
        {"role": "user", "content": "1?"},
        {"role": "assistant", "content": "2"},
    ]
    whole = builder_with().build(row("naïve 角 <image> 😀?", [encoded(picture(48, 32))], before=before))
    marks = [t for t in whole.token_ids.tolist() if t in builder_with().tokenizer.added_tokens_decoder]
    lengths = []
    for limit in range(len(whole.token_ids) - 1, 0, -1):
        try:
            prompt = builder_with(max_prompt_length=limit, truncation=how).shorten(whole)
        except UserError:
            break
        lengths.append(len(prompt.token_ids))
        assert [t for t in prompt.token_ids.tolist() if t in builder_with().tokenizer.added_tokens_decoder] == marks
    skeleton = builder_with().tokenizer.decode(prompt.token_ids)
    assert lengths == list(range(len(whole.token_ids) - 1, len(whole.token_ids) - 1 - len(lengths), -1))
    headers = "<|im_start|>system\n<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>user\n"
    pads = "<|image_pad|>" * 6
    assert skeleton == f"{headers}<|vision_start|>{pads}<|vision_end|><|im_end|>\n<|im_start|>assistant\n<think>\n"
