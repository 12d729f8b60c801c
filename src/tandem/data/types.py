"""What travels between the rooms: a row of a file, the prompt made of it, a sequence to train on. NumPy only, so that it pickles cheaply.

Shapes: T tokens of one sequence, R response tokens, N image patches, I images, 3 rope axes (time, height, width).
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Row:
    """One row in Geo3K's layout, checked but not yet tokenized."""

    id: str  # "<file name>:<row number>", stable between runs
    data_source: str
    messages: list[dict[str, str]]  # role, content; each "<image>" in a content stands for the next of `images`
    images: list[bytes]  # encoded files (PNG, JPEG, ...), as the parquet holds them
    ground_truth: str
    extra_info: dict[str, Any]


@dataclass(frozen=True)
class Prompt:
    """A row after its one pass through the processor; the trainer and the generator both consume exactly this."""

    row: Row
    token_ids: np.ndarray  # [T] int64, image pads expanded
    position_ids: np.ndarray  # [3, T] int64, 3-axis rope positions
    next_position: int  # the position (all three axes) of the first response token
    pixel_values: np.ndarray | None  # [N, patch_dim] float32, None for a text row
    image_grid_thw: np.ndarray | None  # [I, 3] int64, in patches
    prefill: str  # what the template already wrote of the assistant's turn, e.g. "<think>\n": graded together with the response
    rendered: str = ""  # the chat template's text, with one image mark for all pads of an image; for people

    @property
    def num_bytes(self) -> int:
        """Of its arrays."""
        arrays = (self.token_ids, self.position_ids, self.pixel_values, self.image_grid_thw)
        return sum(array.nbytes for array in arrays if array is not None)


@dataclass(frozen=True)
class Later:
    """What an environment showed during a response: images, and where they put the response's tokens."""

    position_ids: np.ndarray  # [3, R] int64, of the response
    pixel_values: np.ndarray  # [N, patch_dim] float32
    image_grid_thw: np.ndarray  # [I, 3] int64


@dataclass(frozen=True)
class Sequence:
    """A prompt and a response to score or train on. `fields` holds one value for each token of the response that the model sampled: all of
    them, R, unless `own` says otherwise; S of them."""

    prompt: Prompt
    response_ids: np.ndarray  # [R] int64
    fields: dict[str, np.ndarray] = field(default_factory=dict)  # name -> [S] float32, e.g. advantages, weights, old_logprobs
    experts: np.ndarray | None = None  # [T, layers, k] int16: chosen by the generator; -1: not known
    own: np.ndarray | None = None  # [R] bool: what the model sampled, where an environment wrote the rest; None: all of it
    later: Later | None = None  # where an environment showed images

    @property
    def num_scored(self) -> int:
        """S: tokens that are scored and trained on."""
        return len(self.response_ids) if self.own is None else int(self.own.sum())

    @property
    def images(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(pixel values, grids) of the prompt's images, then of those that came later."""
        found = []
        for part in (self.prompt, self.later):
            if part is not None and part.pixel_values is not None and part.image_grid_thw is not None:
                found.append((part.pixel_values, part.image_grid_thw))
        return found

    @property
    def num_tokens(self) -> int:
        return len(self.prompt.token_ids) + len(self.response_ids)

    @property
    def token_ids(self) -> np.ndarray:
        """[T] int64."""
        return np.concatenate([self.prompt.token_ids, self.response_ids])

    @property
    def position_ids(self) -> np.ndarray:
        """[3, T] int64: the response continues on all three axes from `prompt.next_position`; with images in it, as they say."""
        if self.later is not None:
            return np.concatenate([self.prompt.position_ids, self.later.position_ids], axis=1)
        tail = self.prompt.next_position + np.arange(len(self.response_ids))
        return np.concatenate([self.prompt.position_ids, np.broadcast_to(tail, (3, len(tail)))], axis=1)
