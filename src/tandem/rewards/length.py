"""Brevity: `length:800` gives 1 to a response of up to 800 characters, less to a longer one, 0 from twice as many on."""

from collections.abc import Callable

from tandem.rewards.types import Grade


def make(option: str) -> Callable[[str, str], Grade]:
    """The grader. Args: option: characters that cost nothing."""
    limit = int(option)

    def grade(text: str, ground_truth: str) -> Grade:
        score = min(1.0, max(0.0, 2 - len(text) / limit))
        return Grade(score, score, "short" if score == 1 else "long")

    return grade
