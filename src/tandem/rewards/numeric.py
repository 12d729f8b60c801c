"""A number, exactly or within a tolerance: `numeric`, `numeric:0.01` (relative). GSM8K's answers are graded so."""

import re
from collections.abc import Callable
from fractions import Fraction

from tandem.rewards.answers import rational, right_side, tidy
from tandem.rewards.extract import after_thought, last_box, said_answer
from tandem.rewards.types import Grade
from tandem.rewards.units import split_unit

_NUMBER = re.compile(r"(?:(?<![\w.)])[-\u2212])?\$?(?:(?:\d+\s+)?\d+\s*/\s*\d+|(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)")
_GSM8K = "####"  # GSM8K's own answers end with it


def make(option: str) -> Callable[[str, str], Grade]:
    """The grader. Args: option: relative tolerance; empty: none."""
    tolerance = Fraction(option or "0")
    return lambda text, ground_truth: _grade(text, ground_truth, tolerance)


def _grade(text: str, ground_truth: str, tolerance: Fraction) -> Grade:
    """The answer is the one that is said, with words around it if it stands in no box and there is no other number among them; or else the
    last number behind the thought. The form is that it is said."""
    right = number(ground_truth.rpartition(_GSM8K)[2])
    if right is None:
        raise ValueError(f"the ground truth {ground_truth!r} is no number")
    said = said_answer(text)
    if said is None:
        numbers = _NUMBER.findall(after_thought(text))
        if not numbers:
            return Grade(0.0, 0.0, "no_answer")
    value = number(said if said is not None else numbers[-1])
    if value is None and said is not None and last_box(text) is None and len(numbers := _NUMBER.findall(said)) == 1:
        value = number(numbers[0])  # `the answer is 5 apples`
    form = float(said is not None)
    if value is None:
        return Grade(0.0, form, "unparsed")
    is_right = abs(value - right) <= tolerance * abs(right)
    return Grade(float(is_right), form, "correct" if is_right else "wrong", answer=str(value))


def number(text: str) -> Fraction | None:
    """The value of a number with or without a unit, dollar sign or percent sign (50% is 50); None for anything else."""
    return rational(split_unit(right_side(tidy(text))).text.replace("$", "").strip())
