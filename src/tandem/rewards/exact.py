"""The answer must be the ground truth, character by character; only runs of spaces count as one."""

from tandem.rewards.extract import said_answer
from tandem.rewards.types import Grade


def grade(text: str, ground_truth: str) -> Grade:
    """The form is that an answer is given at all: in a box, behind `####` or behind `answer is`."""
    answer = said_answer(text)
    if answer is None:
        return Grade(0.0, 0.0, "no_answer")
    right = answer.split() == ground_truth.split()
    return Grade(float(right), 1.0, "correct" if right else "wrong", answer=" ".join(answer.split()))
