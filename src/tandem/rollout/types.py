"""What the generator is asked and what it answers. NumPy only."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tandem.data.types import Later, Prompt

Part = Literal["weights", "kv_cache"]  # of an engine's device memory, by vLLM's names


@dataclass(frozen=True)
class SamplingParams:
    num_samples: int = 1
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 is off
    max_tokens: int = 1024
    seed: int = 0  # the seed of request (prompt i, sample j) is derived from this one, the prompt's row id and j


@dataclass(frozen=True)
class Request:
    prompt: Prompt
    sampling: SamplingParams


def requests_of(prompts: Iterable[Prompt], sampling: SamplingParams) -> list[Request]:
    """One request a prompt, in order. A row that comes twice in one batch gets another seed, and so other samples, the second time."""
    seen: Counter[str] = Counter()
    requests = []
    for prompt in prompts:
        requests.append(Request(prompt, replace(sampling, seed=sampling.seed + (seen[prompt.row.id] << 32))))
        seen[prompt.row.id] += 1
    return requests


@dataclass(frozen=True)
class Completion:
    """One sample. Log-probs are of the sampled token under the policy's own distribution at `temperature`.

    In a rollout of several turns R counts what the environment said in between, too: `own` says which S of the tokens the model sampled.
    """

    token_ids: np.ndarray  # [R] int64, the end-of-turn token included when it was sampled
    logprobs: np.ndarray  # [S] float32; S = R without an environment
    text: str  # of the last turn, decoded without special tokens, without the prefill
    finish_reason: str  # "stop" or "length"; with an environment also "turns", "timeout" or "failed"
    version: int  # the weights' version that made it
    experts: np.ndarray | None = None  # [prompt + R, layers, k] int16, with rollout.router_replay: the experts of each token; -1: not known
    own: np.ndarray | None = None  # [R] bool: what the model sampled, where an environment wrote the rest; None: all of it
    later: Later | None = None  # where the environment showed images
    score: float | None = None  # what the environment gave, in all; None without one

    @property
    def num_own(self) -> int:
        """Tokens that the model sampled."""
        return len(self.token_ids) if self.own is None else int(self.own.sum())

    @property
    def turns(self) -> list[slice]:
        """Where in `logprobs` each turn of the model stands."""
        if self.own is None:
            return [slice(0, len(self.token_ids))]
        starts = np.flatnonzero(np.diff(self.own.astype(np.int8), prepend=0) == 1)
        lengths = [int(np.argmin(np.append(self.own[start:], False))) for start in starts]
        ends = np.cumsum(lengths).tolist()
        return [slice(end - length, end) for end, length in zip(ends, lengths)]
