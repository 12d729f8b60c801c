"""Geo3K's grader: the last \\boxed{} against the ground truth, and whether the thought and the box are where they belong.

It may take for ever: sympy meets text that a model wrote. Run it in `pool.RewardPool`, which has a time limit.
"""

from tandem.rewards.answers import equal, spelling
from tandem.rewards.extract import last_box, well_formed
from tandem.rewards.types import Grade

MAX_ANSWER_LENGTH = 256  # characters; no answer of Geo3K is longer than 60


def grade(text: str, ground_truth: str) -> Grade:
    """Accuracy and format of what the assistant said.

    Args:
        text: the assistant's whole turn, what the chat template prefilled of it included.
        ground_truth: the right answer, LaTeX or plain.
    """
    accuracy, reason, answer = _accuracy(text, ground_truth)
    return Grade(accuracy, float(well_formed(text)), reason, answer=answer)


def _accuracy(text: str, ground_truth: str) -> tuple[float, str, str | None]:
    answer = last_box(text)
    if answer is None:
        return 0.0, "no_box", None
    if not answer:
        return 0.0, "empty_box", None
    if len(answer) > MAX_ANSWER_LENGTH:
        return 0.0, "too_long", None
    right = equal(answer, ground_truth)
    return float(right), "correct" if right else "wrong", spelling(answer)
