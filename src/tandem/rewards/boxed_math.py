"""MATH's kind of answers: the last \\boxed{} against the ground truth, sets, intervals, matrices and equations included.

What Geo3K's verdict knows is decided there; math-verify is asked only about what that has no notion of. It is given plain answers, never
the response, so that it cannot pick another number of it, and no time limit, as its own one needs signals: the pool has one.
"""

import logging
import re

from math_verify import LatexExtractionConfig, parse, verify

from tandem.rewards.answers import RELATIONS, equal, right_side, spelling, tidy
from tandem.rewards.extract import last_box
from tandem.rewards.types import Grade
from tandem.rewards.units import split_unit

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of every call without a time limit

MAX_ANSWER_LENGTH = 1024  # characters
_STRUCTURED = re.compile(r"\\(?:cup|cap|infty|begin|pm|leq?|geq?|neq|emptyset|setminus|mathbb)(?![A-Za-z])|\\\{|[<>\u222a\u221e]")
_POWER = re.compile(r"[\^!]|\\sqrt\s*\[")
_SPELLINGS = [
    (r"\\varnothing|\u2205", r"\\emptyset"),
    (r"\\[dt]frac(?![A-Za-z])", r"\\frac"),
    (r"\\(?:left|right)(?![A-Za-z])", ""),
    (r"\\mathbb\s*([A-Z])", r"\\mathbb{\1}"),
    *RELATIONS,
]
_MEMBER = re.compile(r"^\s*[A-Za-z]\s*(?:\\in(?![A-Za-z])|\u2208)\s*")


def grade(text: str, ground_truth: str) -> Grade:
    """Accuracy; the form is a closed box with something in it."""
    answer = last_box(text)
    if answer is None:
        return Grade(0.0, 0.0, "no_box")
    if not answer:
        return Grade(0.0, 0.0, "empty_box")
    if len(answer) > MAX_ANSWER_LENGTH:
        return Grade(0.0, 1.0, "too_long")
    right = same(answer, ground_truth)
    return Grade(float(right), 1.0, "correct" if right else "wrong", answer=spelling(_spelled(answer)))


def same(answer: str, truth: str) -> bool:
    """Whether two answers say the same: as in Geo3K, or as math-verify sees sets, intervals, matrices, relations and powers."""
    answer, truth = _spelled(answer), _spelled(truth)
    if equal(answer, truth):
        return True
    if answer.count("=") == truth.count("=") == 1:
        mine, right = answer.split("="), truth.split("=")
        return all(map(same, mine, right)) or all(map(same, mine, reversed(right)))
    if not (_STRUCTURED.search(truth) or (_POWER.search(answer + truth) and "," not in answer + truth)):
        return False
    if any(split_unit(tidy(side)).unit for side in (answer, truth)):  # math-verify drops units
        return False
    if "=" in answer and "=" not in truth:
        answer = right_side(answer)
    extraction = [LatexExtractionConfig()]
    parsed = [parse(f"${side}$", extraction, fallback_mode="no_fallback", parsing_timeout=None) for side in (truth, answer)]
    return bool(parsed[0] and parsed[1]) and verify(parsed[0], parsed[1], timeout_seconds=None)


def _spelled(text: str) -> str:
    for pattern, replacement in _SPELLINGS:
        text = re.sub(pattern, replacement, text)
    return _MEMBER.sub("", text).strip()
