"""A batch that was made one step ahead, as JSON: part of a checkpoint, since older weights have made it and could not make it again."""

from typing import Any

import numpy as np

from tandem.data.prompt_set import PromptSet
from tandem.rollout.types import Completion
from tandem.run.ahead import Batch


def batch_to_json(batch: Batch) -> dict[str, Any]:
    """fp32 numbers become the shortest decimals that read back the same."""
    return {
        "rows": [prompt.row.id for prompt in batch.prompts],
        "loader": batch.loader_state,
        "greedy": [_completion(one) for one in batch.greedy],
        "completions": [[_completion(one) for one in of_prompt] for of_prompt in batch.completions],
    }


def batch_from_json(saved: dict[str, Any], prompts: PromptSet) -> Batch:
    """Args: prompts: of the training files, among which the saved rows are."""
    numbers = {row.id: number for number, row in enumerate(prompts.rows)}
    completions = [[_read(one) for one in of_prompt] for of_prompt in saved["completions"]]
    return Batch([prompts[numbers[row]] for row in saved["rows"]], completions, saved["loader"], [_read(one) for one in saved["greedy"]])


def _completion(one: Completion) -> dict[str, Any]:
    return {
        "token_ids": one.token_ids.tolist(),
        "logprobs": [float(value) for value in one.logprobs.astype(np.float64)],
        "text": one.text,
        "finish_reason": one.finish_reason,
        "version": one.version,
    }


def _read(one: dict[str, Any]) -> Completion:
    token_ids, logprobs = np.array(one["token_ids"], np.int64), np.array(one["logprobs"], np.float32)
    return Completion(token_ids, logprobs, one["text"], one["finish_reason"], one["version"])
