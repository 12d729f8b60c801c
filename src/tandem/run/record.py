"""A step's samples as they stand in rollouts/step_*.parquet."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tandem.rollout.types import Completion
from tandem.run.pictures import ImageStore
from tandem.run.samples import Sample


def rollout_rows(samples: Sequence[Sample], token_texts: Callable[[np.ndarray], list[str]], images: ImageStore) -> list[dict[str, Any]]:
    """One row a sample. Args: token_texts: the text of each of some token ids."""
    images.begin_step()
    names: dict[str, list[str | None]] = {}  # row id -> its images, looked at once for all of its samples
    rows = []
    for sample in samples:
        row = sample.prompt.row
        if row.id not in names:
            names[row.id] = images.keep(row.images)
        rows.append(_row(sample) | {"token_texts": _texts(sample.completion, token_texts), "images": names[row.id]})
    return rows


def _texts(completion: Completion, token_texts: Callable[[np.ndarray], list[str]]) -> list[str]:
    """Of each token that the model sampled; the last of a turn brings along what the environment said to it."""
    texts = token_texts(completion.token_ids)
    if completion.own is None:
        return texts
    joined: list[str] = []
    for text, own in zip(texts, completion.own):
        if own:
            joined.append(text)
        else:
            joined[-1] += text
    return joined


def _row(sample: Sample) -> dict[str, Any]:
    prompt, completion = sample.prompt, sample.completion
    return {
        "row_id": prompt.row.id,
        "data_source": prompt.row.data_source,
        "group": sample.group,
        "sample": sample.number,
        "prompt_text": "\n".join(message["content"] for message in prompt.row.messages),
        "prompt_rendered": prompt.rendered,
        "prompt_tokens": len(prompt.token_ids),
        "ground_truth": prompt.row.ground_truth,
        "response_text": sample.text,
        "token_ids": (completion.token_ids if completion.own is None else completion.token_ids[completion.own]).tolist(),
        "logprobs_rollout": completion.logprobs.tolist(),
        "logprobs_train": None if sample.trainer_logprobs is None else sample.trainer_logprobs.tolist(),
        "reward": sample.reward,
        "accuracy": sample.accuracy,
        "format": sample.format,
        "also": list(sample.also.items()),
        "length_penalty": sample.length_penalty,
        "kl_penalty": sample.kl_penalty,
        "advantage": sample.advantage,
        "finish_reason": completion.finish_reason,
        "version": completion.version,
        "grade_reason": sample.reason,
    }
