"""Prompts: the same ids, pixels and grids as transformers' own processor, the opened thought, length limits, ids that are banned."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tandem.config.schema import DataConfig
from tandem.data.images import decode_rgb
from tandem.data.prompt_set import build_prompts
from tandem.data.prompts import PromptBuilder
from tandem.errors import UserError
from tests.data.files import encoded, picture, row

SYSTEM = {"role": "system", "content": "Be brief."}


def own_outputs(builder, messages, **template):
    """What transformers makes of messages that hold their images, template and processor in one call."""
    return builder.processor.apply_chat_template(
        messages, tokenize=True, return_dict=True, return_tensors="pt", add_generation_prompt=True, **template
    )


def tokens(builder, prompt) -> list[str]:
    return builder.tokenizer.convert_ids_to_tokens(prompt.token_ids.tolist())


def runs_of_pads(builder, prompt) -> list[int]:
    """Lengths of the runs of image pads, counted on the text form."""
    text = builder.tokenizer.decode(prompt.token_ids)
    return [part.count("<|image_pad|>") for part in text.split("<|vision_start|>")[1:]]


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("num_images", [0, 1, 2])
def test_a_prompt_is_what_transformers_own_processor_makes(builder_with, num_images, thinking):
    builder = builder_with(thinking=thinking)
    images = [encoded(picture(48, 32)), encoded(picture(64, 96, "L", seed=1), "JPEG")][:num_images]
    prompt = builder.build(row("Look: <image><image> naïve 角 ∠?".replace("<image>", "", 2 - num_images), images, before=[SYSTEM]))
    parts = [{"type": "image", "image": decode_rgb(data)} for data in images]
    content = [{"type": "text", "text": "Look: "}, *parts, {"type": "text", "text": " naïve 角 ∠?"}]
    system = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    expected = own_outputs(builder, [system, {"role": "user", "content": content}], enable_thinking=thinking)
    assert prompt.token_ids.dtype == np.int64
    assert prompt.token_ids.tolist() == expected["input_ids"][0].tolist()
    if num_images:
        assert np.array_equal(prompt.pixel_values, expected["pixel_values"].numpy())
        assert prompt.image_grid_thw.tolist() == expected["image_grid_thw"].tolist()
        assert prompt.pixel_values.dtype == np.float32 and len(prompt.pixel_values) == prompt.image_grid_thw.prod(axis=1).sum()
    else:
        assert prompt.pixel_values is None and prompt.image_grid_thw is None


@pytest.mark.parametrize(
    ("thinking", "prefill"),
    [(True, "<think>\n"), (False, "<think>\n\n</think>\n\n")],
)
def test_the_prompt_ends_with_the_prefill_that_is_graded_with_the_response(builder_with, thinking, prefill):
    builder = builder_with(thinking=thinking)
    prompt = builder.build(row("Hello"))
    assert builder.tokenizer.decode(prompt.token_ids) == f"<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n{prefill}"
    assert prompt.prefill == prefill


def test_an_earlier_answer_is_no_prefill(builder_with):
    before = [{"role": "user", "content": "3?"}, {"role": "assistant", "content": "no"}]
    prompt = builder_with().build(row("4?", before=before))
    assert prompt.prefill == "<think>\n"


def test_each_image_is_one_run_of_as_many_pads_as_it_has_tokens(builder_with):
    builder = builder_with()
    prompt = builder.build(row("<image><image>", [encoded(picture(48, 32)), encoded(picture(80, 16, seed=1))]))
    assert runs_of_pads(builder, prompt) == [6, 5]  # a token for 16 x 16 pixels
    assert len(prompt.pixel_values) == 4 * 11  # four patches a token


def test_images_stand_where_their_marks_are_and_in_their_order(builder_with):
    builder = builder_with()
    first, second = encoded(picture(48, 32)), encoded(picture(16, 16, seed=1))
    prompt = builder.build(row("a<image>b<image>c", [first, second]))
    bare = builder.tokenizer.decode(prompt.token_ids).replace("<|image_pad|>", "")
    assert "user\na<|vision_start|><|vision_end|>b<|vision_start|><|vision_end|>c<|im_end|>" in bare
    alone = [builder.build(row("<image>", [data])).pixel_values for data in (first, second)]
    assert np.array_equal(prompt.pixel_values, np.concatenate(alone))


@pytest.mark.parametrize(("size", "tokens"), [((1, 1), 1), ((1, 150), 13), ((3000, 2000), 247), ((17, 9), 1)])
def test_tiny_and_huge_images_are_scaled_into_the_processor_s_limits(builder_with, size, tokens):
    builder = builder_with()
    prompt = builder.build(row("<image>", [encoded(Image.new("RGB", size))]))
    assert runs_of_pads(builder, prompt) == [tokens]
    assert 1 <= tokens <= 256


def test_an_image_that_is_a_line_names_its_row(builder_with):
    with pytest.raises(UserError, match=r"row test.parquet:0 cannot become a prompt") as caught:
        builder_with().build(row("<image>", [encoded(Image.new("RGB", (1, 500)))]))
    assert "aspect ratio" in caught.value.why


def test_a_broken_image_names_its_row(builder_with):
    with pytest.raises(UserError, match=r"row test.parquet:0 has a broken image"):
        builder_with().build(row("<image>", [encoded(picture())[:100]]))


def test_a_photo_is_seen_upright_and_on_white(builder_with):
    exif = Image.Exif()
    exif[0x0112] = 6
    image = picture(48, 32)
    turned = builder_with().build(row("<image>", [encoded(image.transpose(Image.Transpose.ROTATE_90), "PNG", exif=exif)]))
    assert np.array_equal(turned.pixel_values, builder_with().build(row("<image>", [encoded(image)])).pixel_values)
    clear, white = Image.new("RGBA", (32, 32), (0, 0, 0, 0)), Image.new("RGB", (32, 32), "white")
    pixels = [builder_with().build(row("<image>", [encoded(x)])).pixel_values for x in (clear, white)]
    assert np.array_equal(*pixels) and (pixels[0] == 1).all()  # mean and standard deviation are a half


def test_a_literal_mark_without_an_image_is_text(builder_with):
    builder = builder_with()
    prompt = builder.build(row("the tag <image> of HTML"))
    assert "the tag <image> of HTML" in builder.tokenizer.decode(prompt.token_ids)
    assert prompt.image_grid_thw is None


@pytest.mark.parametrize("token", ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|im_end|>", "<|im_start|>", "<|endoftext|>"])
def test_a_reserved_token_in_the_text_is_refused_not_taken_for_the_template_s(builder_with, token):
    with pytest.raises(UserError) as caught:
        builder_with().build(row(f"<image> 7{token}\n", [encoded(picture())]))
    assert "row test.parquet:0" in caught.value.what and token in caught.value.why


def test_what_the_template_refuses_names_the_row(builder_with):
    with pytest.raises(UserError, match="the system message must be the first"):
        builder_with().build(row("Hello", before=[{"role": "user", "content": "x"}, SYSTEM]))


def test_rows_past_the_limit_are_left_out_and_counted_and_one_at_the_limit_stays(builder_with):
    short, long = row("1 2 3"), row("1 2 3 4 5 6 7 8 9")
    limit = len(builder_with().build(short).token_ids)
    made = build_prompts([long, short, long], builder_with(max_prompt_length=limit))
    assert [len(p.token_ids) for p in made] == [limit]
    assert made.num_overlong == 2
    made = build_prompts([short, short], builder_with(max_prompt_length=limit - 1, filter_overlong=False, truncation="left"))
    assert [len(p.token_ids) for p in made] == [limit - 1] * 2 and made.num_overlong == 0


def test_image_tokens_count_towards_the_limit(builder_with):
    plain, with_image = row("What is it?"), row("<image>What is it?", [encoded(picture(96, 96))])
    limit = len(builder_with().build(plain).token_ids) + 20
    made = build_prompts([plain, with_image], builder_with(max_prompt_length=limit))
    assert [p.row for p in made] == [plain] and made.num_overlong == 1


def test_no_row_left_is_an_error_that_says_so(builder_with):
    with pytest.raises(UserError) as caught:
        build_prompts([row("Hello"), row("Good day")], builder_with(max_prompt_length=3))
    assert caught.value.what == "no prompt is left"
    assert caught.value.why == "all 2 rows are longer than 3 tokens"


def test_a_broken_row_is_never_counted_as_too_long(builder_with):
    with pytest.raises(UserError, match="broken image"):
        build_prompts([row("Hello"), row("<image>", [b"nonsense"])], builder_with())


def test_progress_counts_every_row_left_out_or_not(builder_with):
    seen = []
    limit = len(builder_with().build(row("x")).token_ids)
    build_prompts([row("x"), row("x y z 1 2 3"), row("x")], builder_with(max_prompt_length=limit), lambda *at: seen.append(at))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_banned_are_vision_tokens_and_rows_of_the_embedding_without_a_token(builder_with):
    builder = builder_with()
    banned = builder.banned_token_ids()
    vision = {"<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"}
    named = [token for token in banned if token < len(builder.tokenizer)]
    assert set(builder.tokenizer.convert_ids_to_tokens(named)) == vision
    assert banned[len(named) :] == list(range(len(builder.tokenizer), builder.vocab_size))
    assert builder.vocab_size % 64 == 0 and banned == sorted(set(banned))
    for token in (*builder.stop_token_ids(), *builder.encode_response("<think>\n7\n</think>")):
        assert token not in banned


def test_a_response_ends_its_turn_and_reads_back(builder_with):
    builder = builder_with()
    text = "naïve 角: 3 + 4 = 7\n</think>\n\n\\boxed{7} 😀"
    ids = builder.encode_response(text)
    assert ids.dtype == np.int64 and ids[-1] == builder.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert builder.decode(ids) == text
    assert ids[-1] in builder.stop_token_ids()


def test_stop_ids_come_from_the_generation_config_when_there_is_one(tiny_model, tmp_path):
    end, pad = PromptBuilder(str(tiny_model), DataConfig()).tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert PromptBuilder(str(tiny_model), DataConfig()).stop_token_ids() == sorted([end, pad])
    folder = shutil.copytree(tiny_model, tmp_path / "model", ignore=shutil.ignore_patterns("generation_config.json", "*.safetensors"))
    assert PromptBuilder(str(folder), DataConfig()).stop_token_ids() == [end]


@pytest.mark.parametrize(
    ("gone", "why"),
    [
        ("config.json", "cannot be loaded"),
        ("*", "cannot be loaded"),
        ("chat_template.jinja", "has no chat template"),
    ],
)
def test_a_model_folder_with_a_file_missing_is_refused(tiny_model, tmp_path, gone, why):
    folder = shutil.copytree(tiny_model, tmp_path / "model", ignore=shutil.ignore_patterns(gone, "*.safetensors"))
    with pytest.raises(UserError, match=why):
        PromptBuilder(str(folder), DataConfig())


def test_a_text_model_is_refused(tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "model", ignore=shutil.ignore_patterns("*preprocessor_config.json", "*.safetensors"))
    (folder / "config.json").write_text('{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}')
    with pytest.raises(UserError, match=r"is no Qwen3\.5 vision-language model"):
        PromptBuilder(str(folder), DataConfig())


def test_the_row_itself_is_not_changed(builder_with):
    original = row("<image>Hello", [encoded(picture())])
    copy = replace(original, messages=[dict(m) for m in original.messages])
    assert builder_with().build(original).row == copy


def test_people_see_the_prompt_as_the_template_gave_it(builder_with) -> None:
    builder = builder_with(max_prompt_length=4096)
    prompt = builder.build(row("<image>How many?", [encoded(picture(56, 56))]))
    pads = builder.tokenizer.decode(prompt.token_ids.tolist(), skip_special_tokens=False)
    assert prompt.rendered.count("<|image_pad|>") == 1 < pads.count("<|image_pad|>")
    assert re.sub(r"(<\|image_pad\|>)+", "<|image_pad|>", pads) == prompt.rendered
    short = builder_with(max_prompt_length=len(prompt.token_ids) - 2, truncation="right").shorten(prompt)
    assert short.rendered.count("<|image_pad|>") == 1
    assert len(short.rendered) < len(prompt.rendered)


def test_tokens_that_share_a_character_do_not_show_broken_ones(builder_with) -> None:
    builder = builder_with()
    text = "n = \U0001f9ee \u00e9 x"
    ids = builder.encode_response(text)
    texts = builder.token_texts(ids)
    assert "".join(texts) == text + "<|im_end|>"
    assert len(texts) == len(ids)
    assert "" in texts, "the tiny tokenizer writes an emoji in several tokens"
