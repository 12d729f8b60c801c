"""What a grader says about one response."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Grade:
    """Scores between 0 and 1. `reason` is one word for tables: `correct`, `wrong`, `no_box`, `timeout`, `crashed`, ..."""

    accuracy: float
    format: float
    reason: str
