"""One sample of several turns: the model's tokens as it sampled them, between them what the environment said, as the template has it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tandem.data.continuation import continued
from tandem.data.prompts import PromptBuilder
from tandem.data.types import Later, Prompt
from tandem.rollout.environment import Message
from tandem.rollout.types import Completion, Request

MAX_IMAGES = 16  # of one sample, those of the prompt included
TURN_BITS = 48  # turn t of a sample is drawn by the request's seed + (t << 48)


class Conversation:
    """What has been said so far. The model's token ids are never made again from text.

    Args:
        request: its `max_tokens` is for all turns together, and for what the environment says.
        number: which sample of the request.
        max_model_len: tokens of prompt and response together.
    """

    def __init__(self, request: Request, number: int, max_model_len: int):
        self.request, self.number, self._max_model_len = request, number, max_model_len
        self.context = request.prompt  # what the next turn follows
        self.score = 0.0
        self._ids, self._own = list[np.ndarray](), list[np.ndarray]()
        self._turns = list[Completion]()

    @property
    def num_turns(self) -> int:
        """Of the model's, up to now."""
        return len(self._turns)

    @property
    def prefill(self) -> str:
        return self.context.prefill

    @property
    def last_text(self) -> str:
        return self.prefill + self._turns[-1].text

    @property
    def room(self) -> int:
        """Tokens that may still come."""
        said = sum(map(len, self._ids))
        return min(self.request.sampling.max_tokens - said, self._max_model_len - len(self.context.token_ids))

    def next_request(self) -> Request:
        """Of the model's next turn."""
        sampling = self.request.sampling
        seed = sampling.seed + (self.num_turns << TURN_BITS)
        return Request(self.context, replace(sampling, max_tokens=self.room, seed=seed, num_samples=1))

    def take(self, turn: Completion) -> None:
        """The model's turn, which answers `next_request`."""
        self._turns.append(turn)
        self._add(turn.token_ids, own=True)

    def hear(self, builder: PromptBuilder, messages: Sequence[Message]) -> bool:
        """What the environment says to the last turn. False, and nothing has changed, when no room would be left for an answer.

        Raises:
            ValueError: the template or the processor cannot take the messages.
        """
        after = continued(builder, self.context, self._turns[-1].token_ids, messages)
        num_images = 0 if after.image_grid_thw is None else len(after.image_grid_thw)
        said = after.token_ids[len(self.context.token_ids) + len(self._turns[-1].token_ids) :]
        num_tokens = sum(map(len, self._ids)) + len(said)
        if num_tokens >= self.request.sampling.max_tokens or len(after.token_ids) >= self._max_model_len or num_images > MAX_IMAGES:
            return False
        self._add(said, own=False)
        self.context = after
        return True

    def _add(self, ids: np.ndarray, *, own: bool) -> None:
        self._ids.append(ids)
        self._own.append(np.full(len(ids), own))

    def completion(self, finish_reason: str) -> Completion:
        """The whole sample; it ends with the model's last turn."""
        last = self._turns[-1]
        return Completion(
            token_ids=np.concatenate(self._ids),
            logprobs=np.concatenate([turn.logprobs for turn in self._turns]),
            text=last.text,
            finish_reason=finish_reason,
            version=last.version,
            experts=last.experts,  # of all tokens before it, too
            own=np.concatenate(self._own),
            later=self._later(len(last.token_ids)),
            score=self.score,
        )

    def _later(self, num_last: int) -> Later | None:
        first, now = self.request.prompt, self.context
        if now.pixel_values is None or now.image_grid_thw is None or num_images(now) == num_images(first):
            return None
        tail = np.broadcast_to(now.next_position + np.arange(num_last), (3, num_last))
        positions = np.concatenate([now.position_ids[:, len(first.token_ids) :], tail], axis=1)
        known = 0 if first.pixel_values is None else len(first.pixel_values)
        return Later(positions, now.pixel_values[known:], now.image_grid_thw[num_images(first) :])


def num_images(prompt: Prompt) -> int:
    return 0 if prompt.image_grid_thw is None else len(prompt.image_grid_thw)
