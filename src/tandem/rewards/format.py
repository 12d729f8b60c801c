"""Form alone: a thought, then a box, whatever is in it."""

from tandem.rewards.extract import well_formed
from tandem.rewards.types import Grade


def grade(text: str, ground_truth: str) -> Grade:
    score = float(well_formed(text))
    return Grade(score, score, "well_formed" if score else "malformed")
