"""A prompt, a response to it, and what is said then: the next prompt, made without tokenizing again what is there."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from jinja2 import TemplateError

from tandem.data.images import decode_rgb
from tandem.data.positions import rope_positions
from tandem.data.prompts import ASSISTANT, PromptBuilder, messages_in_parts
from tandem.data.types import Prompt

_SAID = "@said@"  # stands for the assistant's turn
END = "<|im_end|>"


class Said(Protocol):
    """A message, as `tandem.rollout.environment.Message` is one."""

    @property
    def content(self) -> str: ...
    @property
    def images(self) -> list[bytes]: ...
    @property
    def role(self) -> str: ...


def continued(builder: PromptBuilder, prompt: Prompt, response_ids: np.ndarray, messages: Sequence[Said]) -> Prompt:
    """The prompt after `messages`: the ids of `prompt` and `response_ids` as they are, then those of what the template writes behind the
    assistant's turn. A response that some other token ended gets the end of its turn.

    Tokens of the whole text would be the same: a special token stands on either side of the seam, and no token spans one.

    Raises:
        ValueError: the template or the processor cannot take the messages, or one spells out a reserved token.
    """
    try:
        text = behind_the_turn(builder, messages)
    except TemplateError as error:
        raise ValueError(f"the chat template cannot take the messages: {error}") from error
    if not len(response_ids) or response_ids[-1] != builder.end_token_id:
        text = END + text
    images = [decode_rgb(data) for message in messages for data in message.images] or None
    outputs = builder.processor(text=[text], images=images, return_tensors="pt")
    token_ids = np.concatenate([prompt.token_ids, response_ids, outputs["input_ids"][0].numpy()])
    pixels, grid = prompt.pixel_values, prompt.image_grid_thw
    if images:
        pixels = _joined(pixels, outputs["pixel_values"].numpy())
        grid = _joined(grid, outputs["image_grid_thw"].numpy())
    position_ids, next_position = rope_positions(token_ids, builder.image_token_id, grid, builder.merge_size)
    said = builder.tokenizer.decode(response_ids.tolist(), skip_special_tokens=False)
    return replace(
        prompt,
        token_ids=token_ids,
        position_ids=position_ids,
        next_position=next_position,
        pixel_values=pixels,
        image_grid_thw=grid,
        prefill=text.rpartition(ASSISTANT)[2],
        rendered=prompt.rendered + said + text,
    )


def behind_the_turn(builder: PromptBuilder, messages: Sequence[Said]) -> str:
    """What the template writes behind the assistant's turn and its end token: the messages, and the beginning of the next turn."""
    given = [
        message for said in messages for message in messages_in_parts([{"role": said.role, "content": said.content}], len(said.images))
    ]
    before = [{"role": "user", "content": "-"}, {"role": "assistant", "content": _SAID}]
    text = builder.processor.apply_chat_template(
        before + given, tokenize=False, add_generation_prompt=True, enable_thinking=builder.data.thinking
    )
    _, seam, behind = text.partition(_SAID + END)
    if not seam:
        raise ValueError("the chat template does not end an assistant's turn with <|im_end|>")
    return str(behind)


def _joined(before: np.ndarray | None, more: np.ndarray) -> np.ndarray:
    return more if before is None else np.concatenate([before, more])
