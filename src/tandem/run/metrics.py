"""Figures of a step."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tandem.rewards.user import one_word
from tandem.run.samples import Sample
from tandem.run.tracker import Tracker

MAX_REASONS = 20  # a user's grader may have a word for each response


class Stopwatch:
    """Times the phases of one step and shows them: `with clock("rollout"): ...`."""

    def __init__(self, track: Tracker):
        self.track, self.began = track, time.monotonic()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        with self.track.phase(phase):
            began = time.monotonic()
            yield
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - began


def sample_metrics(samples: list[Sample]) -> dict[str, float]:
    """Of the samples themselves, before any training on them."""
    rewards = np.array([s.reward for s in samples])
    groups = np.array([s.group for s in samples])
    lengths = [len(s.completion.token_ids) for s in samples]
    reasons = Counter(one_word(s.reason) for s in samples)
    reasons["timeout"] += 0  # shown in any case
    also = sorted({name for s in samples for name in s.also})
    return {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        "reward/mixed_groups": float(np.mean([np.ptp(rewards[groups == g]) > 0 for g in np.unique(groups)])),
        "accuracy/mean": float(np.mean([s.accuracy for s in samples])),
        "format/mean": float(np.mean([s.format for s in samples])),
        "reward/length_penalty": float(np.mean([s.length_penalty for s in samples])),
        "response_length/mean": float(np.mean(lengths)),
        "response_length/max": float(max(lengths)),
        "response_length/clipped_share": float(np.mean([s.completion.finish_reason == "length" for s in samples])),
        **{f"grade/{reason}_share": count / len(samples) for reason, count in reasons.most_common(MAX_REASONS)},
        **{f"reward/{one_word(name)}": float(np.mean([s.also.get(name, 0.0) for s in samples])) for name in also},
        **conversation_metrics(samples),
        "tokens/prompt": float(sum(len(s.prompt.token_ids) for s in samples)),
        "tokens/response": float(sum(lengths)),
    }


def conversation_metrics(samples: list[Sample]) -> dict[str, float]:
    """Of rollouts with an environment: turns, the tokens that it wrote, and how samples ended."""
    talks = [s.completion for s in samples if getattr(s.completion, "own", None) is not None]
    if not talks:
        return {}
    return {
        "environment/turns_mean": float(np.mean([len(c.turns) for c in talks])),
        "environment/tokens_share": 1 - sum(c.num_own for c in talks) / sum(len(c.token_ids) for c in talks),
        **{f"environment/{end}_share": float(np.mean([c.finish_reason == end for c in talks])) for end in ("turns", "timeout", "failed")},
    }


def throughput(samples: list[Sample], clock: Stopwatch) -> dict[str, float]:
    """Seconds of each phase and tokens a second over the whole step, prompt and response."""
    step_s = time.monotonic() - clock.began
    tokens = sum(s.sequence().num_tokens for s in samples)
    return {
        **{f"time/{phase}_s": seconds for phase, seconds in clock.seconds.items()},
        "time/step_s": step_s,
        "tokens_per_s": tokens / step_s,
    }
