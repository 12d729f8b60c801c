"""Graders by name. One grader, one module with `grade(text, ground_truth) -> Grade`; to add one, write it and add its line to REWARDS.

Importing this package is light: a grader's own libraries load in the grading processes (`pool.py`).
"""

import difflib
from collections.abc import Callable
from importlib import import_module

from tandem.errors import UserError
from tandem.rewards.types import Grade

REWARDS = {"geo3k": "tandem.rewards.geo3k"}  # name -> module


def check_name(name: str) -> None:
    """Raises:
    UserError: no such grader; suggests the nearest.
    """
    if name not in REWARDS:
        near = difflib.get_close_matches(name, REWARDS, n=1) or list(REWARDS)[:1]
        raise UserError(f"unknown reward {name!r}", f"there are: {', '.join(sorted(REWARDS))}", f"set reward.name={near[0]}")


def get(name: str) -> Callable[[str, str], Grade]:
    """The `grade` function of a grader; loads what it needs.

    Raises:
        UserError: no such grader; suggests the nearest.
    """
    check_name(name)
    return import_module(REWARDS[name]).grade


def combine(grade: Grade, format_weight: float) -> float:
    """(1 - w) accuracy + w format, the reward of one response; w between 0 and 1."""
    return (1 - format_weight) * grade.accuracy + format_weight * grade.format
