"""Graders by name. One of ours is a module with `grade(text, ground_truth) -> Grade`, or `make(option)` that returns such a function.

To add one, write it and add its line to REWARDS. Importing this package is light: a grader's own libraries load in the grading processes
(`pool.py`).
"""

import difflib
from collections.abc import Mapping

from tandem.errors import UserError
from tandem.rewards.types import Grade, Item
from tandem.rewards.user import check_function

__all__ = ["REWARDS", "Grade", "Item", "check_name", "check_names", "combine", "is_function", "is_url", "parse_also"]

REWARDS = {  # name -> module
    "geo3k": "tandem.rewards.geo3k",
    "math": "tandem.rewards.boxed_math",
    "exact": "tandem.rewards.exact",
    "numeric": "tandem.rewards.numeric",
    "choice": "tandem.rewards.choice",
    "length": "tandem.rewards.length",
    "format": "tandem.rewards.format",
}
OPTIONS = {"length": int, "numeric": float}  # what may stand behind a colon
NEEDED = {"length": "length:800"}  # an example of one that must have it


def is_url(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def is_function(name: str) -> bool:
    """Whether `name` is FILE.py:FUNCTION."""
    return ".py:" in name and not is_url(name)


def check_name(name: str, key: str = "reward.name") -> None:
    """Args: key: the setting that holds the name.

    Raises:
        UserError: no such grader (suggests the nearest), a wrong option, or no such function in the file.
    """
    if is_url(name):
        return
    if is_function(name):
        return check_function(name)
    short, colon, option = name.partition(":")
    if short not in REWARDS:
        near = difflib.get_close_matches(short, REWARDS, n=1) or list(REWARDS)[:1]
        there = f"there are: {', '.join(sorted(REWARDS))}; FILE.py:FUNCTION; http://..."
        raise UserError(f"unknown reward {name!r}", there, f"set {key}={near[0]}")
    if bool(colon) and short not in OPTIONS:
        raise UserError(f"reward {name!r}", f"{short} takes no option", f"set {key}={short}")
    if (short in NEEDED or colon) and not _is_positive(option, OPTIONS[short]):
        example = NEEDED.get(short, f"{short}:0.01")
        raise UserError(f"reward {name!r}", f"behind the colon stands a positive {OPTIONS[short].__name__}", f"for example {example}")


def _is_positive(option: str, kind: type[int] | type[float]) -> bool:
    try:
        return 0 < kind(option) < float("inf")
    except ValueError:
        return False


def parse_also(entries: list[str]) -> dict[str, float]:
    """`["0.2*length:800"]` -> {name: weight}. Raises UserError for an entry of another form, an unknown name, or one that comes twice."""
    weights: dict[str, float] = {}
    for entry in entries:
        weight, star, name = entry.partition("*")
        try:
            value = float(weight)
        except ValueError:
            value = float("nan")
        name = name.strip()
        if not star or value != value or abs(value) == float("inf") or name in weights:
            why = "it comes twice" if name in weights else "an entry is WEIGHT*NAME"
            raise UserError(f"reward.also holds {entry!r}", why, 'for example reward.also=["0.2*length:800"]')
        check_name(name, "reward.also")
        weights[name] = value
    return weights


def check_names(name: str, also: list[str]) -> None:
    """Raises UserError for a grader that does not exist, or that is asked twice."""
    check_name(name)
    if name in parse_also(also):
        why = "a response has one score of each grader"
        raise UserError(f"reward.also names {name!r}, which is reward.name", why, "leave it out of reward.also")


def combine(grade: Grade, format_weight: float, also: Mapping[str, float] | None = None) -> float:
    """(1 - w) accuracy + w format, the reward of one response; w between 0 and 1. `also`: weights of further graders, to add their scores.

    A response that could not be graded has no such scores, and they count as 0.
    """
    own = (1 - format_weight) * grade.accuracy + format_weight * grade.format
    return own + sum(weight * grade.also.get(name, 0.0) for name, weight in (also or {}).items())
