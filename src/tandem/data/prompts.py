"""A row's one pass through the chat template and the model's processor."""

import json
import re
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from itertools import groupby
from typing import Any

import numpy as np
from blake3 import blake3

from tandem.config.schema import DataConfig
from tandem.data.bad_rows import BadRow
from tandem.data.images import BROKEN, decode_rgb, reason
from tandem.data.positions import rope_positions
from tandem.data.rows import IMAGE_MARK
from tandem.data.tokens import VISION_TOKENS, reserved_in
from tandem.data.truncate import keep_indices
from tandem.data.types import Prompt, Row
from tandem.errors import UserError

ASSISTANT = "<|im_start|>assistant\n"
IMAGE_PAD = "<|image_pad|>"


class PromptBuilder:
    """Turns rows into prompts, and text into token ids and back, as one model folder says.

    Raises:
        UserError: config, processor or chat template of `model_path` cannot be loaded, or the processor is not Qwen3.5's.
    """

    def __init__(self, model_path: str, data: DataConfig):
        from transformers import AutoConfig, AutoProcessor, Qwen3VLProcessor  # seconds to import

        try:
            config = AutoConfig.from_pretrained(model_path)
            self.processor = AutoProcessor.from_pretrained(model_path)
        except (OSError, ValueError, KeyError) as error:
            fix = "set model.path to a complete Hugging Face folder: config, tokenizer and preprocessor files"
            raise UserError(f"model {model_path!r} cannot be loaded", reason(error), fix) from error
        if not isinstance(self.processor, Qwen3VLProcessor):
            why = f"its processor is {type(self.processor).__name__}, not Qwen3VLProcessor"
            raise UserError(f"model {model_path!r} is no Qwen3.5 vision-language model", why, "set model.path to a Qwen3.5 model")
        if not self.processor.chat_template:
            raise UserError(f"model {model_path!r} has no chat template", "prompts are rendered with it", "add its chat_template.jinja")
        self.model_path, self.data = model_path, data
        self.tokenizer = self.processor.tokenizer
        self.vocab_size = config.get_text_config().vocab_size
        self.merge_size = self.processor.image_processor.merge_size
        self.image_token_id, self.end_token_id = self.tokenizer.convert_tokens_to_ids([IMAGE_PAD, "<|im_end|>"])
        self._stop_ids = _stop_ids(model_path, self.end_token_id)
        self._token_texts: dict[int, str] = {}  # those that were asked for

    @cached_property
    def fingerprint(self) -> str:
        """Changes with whatever changes the tokens of a row: template, tokenizer, image processor, what the template is told."""
        parts = [version("transformers"), self.data.thinking, self.processor.chat_template, self.tokenizer.backend_tokenizer.to_str()]
        return blake3(json.dumps([*parts, self.processor.image_processor.to_json_string()]).encode()).hexdigest(16)

    def build(self, row: Row) -> Prompt:
        """The whole prompt of `row`, however long. Raises `BadRow` naming the row when it cannot be rendered or processed."""
        from jinja2 import TemplateError

        try:
            images = [decode_rgb(data) for data in row.images] or None
        except BROKEN as error:
            raise BadRow(f"row {row.id} has a broken image", reason(error), "replace the image or remove the row", "image") from error
        try:
            text = self.processor.apply_chat_template(
                messages_in_parts(row.messages, len(row.images)),
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=self.data.thinking,
            )
            outputs = self.processor(text=[text], images=images, return_tensors="pt")
            token_ids = outputs["input_ids"][0].numpy()
            grid = outputs["image_grid_thw"].numpy() if images else None
            position_ids, next_position = rope_positions(token_ids, self.image_token_id, grid, self.merge_size)
        except (ValueError, TemplateError) as error:
            raise BadRow(f"row {row.id} cannot become a prompt", reason(error), "correct the row, or remove it", "prompt") from error
        return Prompt(
            row=row,
            token_ids=token_ids,
            position_ids=position_ids,
            next_position=next_position,
            pixel_values=outputs["pixel_values"].numpy() if images else None,
            image_grid_thw=grid,
            prefill=text.rpartition(ASSISTANT)[2],
            rendered=text,
        )

    def shorten(self, prompt: Prompt) -> Prompt:
        """`prompt` cut to data.max_prompt_length as data.truncation says: only text of messages goes, never an image or the template."""
        limit = self.data.max_prompt_length
        num_tokens = len(prompt.token_ids)
        if num_tokens <= limit:
            return prompt
        keep = None
        if self.data.truncation != "error":
            tokens = self.tokenizer.convert_ids_to_tokens(prompt.token_ids.tolist())
            added = np.isin(prompt.token_ids, list(self.tokenizer.added_tokens_decoder))
            keep = keep_indices(tokens, added, num_tokens - limit, self.data.truncation)
        if keep is None:
            why = "data.truncation is error" if self.data.truncation == "error" else "without all its text it would still be longer"
            fix = "raise data.max_prompt_length, or set data.filter_overlong=true to leave such rows out"
            raise UserError(f"row {prompt.row.id} has {num_tokens} tokens, data.max_prompt_length is {limit}", why, fix)
        token_ids = prompt.token_ids[keep]
        position_ids, next_position = rope_positions(token_ids, self.image_token_id, prompt.image_grid_thw, self.merge_size)
        pads = re.escape(IMAGE_PAD)
        rendered = re.sub(f"(?:{pads})+", IMAGE_PAD, self.tokenizer.decode(token_ids.tolist(), skip_special_tokens=False))
        return replace(prompt, token_ids=token_ids, position_ids=position_ids, next_position=next_position, rendered=rendered)

    def encode_response(self, text: str) -> np.ndarray:
        """[R] int64: `text` as the assistant would go on after the prefill, and the end of its turn."""
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return np.array([*ids, self.end_token_id], dtype=np.int64)

    def decode(self, ids: np.ndarray | list[int]) -> str:
        """The text of `ids` without special tokens; <think> and </think> are text."""
        return self.tokenizer.decode([int(token) for token in ids], skip_special_tokens=True)

    def token_texts(self, ids: np.ndarray) -> list[str]:
        """The text of each token by itself. Of tokens that make up a character together the first has it, the others have none."""
        for token in set(ids.tolist()) - self._token_texts.keys():
            self._token_texts[token] = self.tokenizer.decode([token], skip_special_tokens=False)
        texts = [self._token_texts[token] for token in ids.tolist()]
        for partial, run in groupby(range(len(texts)), key=lambda place: "\ufffd" in texts[place]):
            if partial:
                first, *others = run
                texts[first] = self.tokenizer.decode(ids[[first, *others]].tolist(), skip_special_tokens=False)
                texts[first + 1 : first + 1 + len(others)] = [""] * len(others)
        return texts

    def banned_token_ids(self) -> list[int]:
        """Ids that the policy must never sample: vision tokens (the next forward pass would look for an image) and the unused
        rows between the tokenizer's last id and the model's padded vocabulary."""
        vision = self.tokenizer.convert_tokens_to_ids(list(VISION_TOKENS))
        known = self.tokenizer.get_vocab().values()
        return sorted({*vision} | {*range(self.vocab_size)} - {*known})

    def stop_token_ids(self) -> list[int]:
        """Ids that end a response: the end of the turn, and what generation_config.json names."""
        return self._stop_ids


def messages_in_parts(given: list[dict[str, str]], num_images: int) -> list[dict[str, Any]]:
    """The messages as the template takes them: an image part where an image mark stands, when there are images.

    Raises:
        ValueError: a message spells out a reserved token.
    """
    for message in given:
        if found := reserved_in(message["content"]):
            raise ValueError(f"its text holds the reserved token {found}")
    if not num_images:
        return list(given)
    messages = []
    for message in given:
        first, *rest = message["content"].split(IMAGE_MARK)
        parts = [{"type": "text", "text": first}]
        for text in rest:
            parts += [{"type": "image"}, {"type": "text", "text": text}]
        messages.append({"role": message["role"], "content": parts})
    return messages


def _stop_ids(model_path: str, end_token_id: int) -> list[int]:
    from transformers import GenerationConfig

    try:
        eos = GenerationConfig.from_pretrained(model_path).eos_token_id
    except OSError:  # the file is optional in a model folder
        eos = None
    named = eos if isinstance(eos, list) else [] if eos is None else [eos]
    return sorted({end_token_id, *named})
