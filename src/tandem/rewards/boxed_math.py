"""MATH's kind of answers: the last \\boxed{} against the ground truth, sets, intervals, matrices and equations included.

What Geo3K's verdict knows is decided there; math-verify is asked only about what that has no notion of. It is given plain answers, never
the response, so that it cannot pick another number of it, and no time limit, as its own one needs signals: the pool has one.
"""

import re

from math_verify import LatexExtractionConfig, parse, verify

from tandem.rewards.answers import equal, tidy
from tandem.rewards.extract import last_box
from tandem.rewards.types import Grade

MAX_ANSWER_LENGTH = 1024  # characters
_STRUCTURED = re.compile(
    r"\\(?:cup|cap|infty|in|begin|pm|leq?|geq?|neq|emptyset|varnothing|setminus|mathbb)(?![A-Za-z])|\\\{|[<>\u222a\u221e]"
)


def grade(text: str, ground_truth: str) -> Grade:
    """Accuracy; the form is a closed box with something in it."""
    answer = last_box(text)
    if answer is None:
        return Grade(0.0, 0.0, "no_box")
    if not answer:
        return Grade(0.0, 0.0, "empty_box")
    if len(answer) > MAX_ANSWER_LENGTH:
        return Grade(0.0, 1.0, "too_long")
    return Grade(1.0, 1.0, "correct") if same(answer, ground_truth) else Grade(0.0, 1.0, "wrong")


def same(answer: str, truth: str) -> bool:
    """Whether two answers say the same: as in Geo3K, or as math-verify sees sets, intervals, matrices and relations."""
    if equal(answer, truth):
        return True
    if not _STRUCTURED.search(truth):
        return False
    extraction = [LatexExtractionConfig()]
    parsed = [parse(f"${tidy(side)}$", extraction, fallback_mode="no_fallback", parsing_timeout=None) for side in (truth, answer)]
    return bool(parsed[0] and parsed[1]) and verify(parsed[0], parsed[1], timeout_seconds=None)
