"""A grader by its name, as the grading processes run it."""

import asyncio
import inspect
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tandem.config.userfile import UserFolder, load_from
from tandem.rewards import REWARDS, is_function, is_url
from tandem.rewards.types import Grade, Item
from tandem.rewards.user import SEVERAL, arguments, as_grade


class Grader:
    """Grades items one by one, or, where `at_once`, several in one call; `concurrent`: these then take no longer than one.

    A grade that could not be given is its traceback.
    """

    def __init__(self, grade: Callable[[list[Item]], list[Any]], *, at_once: bool = False, concurrent: bool = False):
        self.grade, self.at_once, self.concurrent = grade, at_once, concurrent

    def __call__(self, items: list[Item]) -> list[Grade | str]:
        try:
            found = self.grade(items)
        except Exception as error:  # noqa: BLE001 - a user's code: the pool says what happened
            if len(items) == 1:
                return [_told(error)]
            return [grade for item in items for grade in self([item])]  # one of them may be the reason
        if not isinstance(found, list | tuple) or len(found) != len(items):
            why = f"a grader of several responses must return a list with one grade each; for {len(items)} it returned {found!r}"
            return [_told(ValueError(why))] * len(items)
        return [_as_grade(value) for value in found]


def load(name: str) -> Grader:
    """What `name` stands for: one of ours with or without an option, FILE.py:FUNCTION, or an address."""
    if is_url(name):
        ask = import_module("tandem.rewards.http").grader(name)
        return Grader(lambda items: [ask(item) for item in items])
    if is_function(name):
        function, folder = load_from(name)
        return _in_folder(_of_function(function), folder)
    short, _, option = name.partition(":")
    module = import_module(REWARDS[short])
    grade = module.make(option) if hasattr(module, "make") else module.grade
    return Grader(lambda items: [grade(item.text, item.ground_truth) for item in items])


def _in_folder(grader: Grader, folder: UserFolder) -> Grader:
    """The same grader, which finds the modules beside its file also when it imports them in the middle of a call."""

    def grade(items: list[Item]) -> list[Any]:
        with folder.active():
            return grader.grade(items)

    return Grader(grade, at_once=grader.at_once, concurrent=grader.concurrent)


def _of_function(function: Callable[..., Any]) -> Grader:
    names = set(inspect.signature(function).parameters)
    several, is_async = bool(names & SEVERAL.keys()), inspect.iscoroutinefunction(function)
    if not is_async:
        if several:
            return Grader(lambda items: function(**arguments(names, items)), at_once=True)
        return Grader(lambda items: [function(**arguments(names, [item])) for item in items])
    runner = asyncio.Runner()  # one loop for the life of the process: clients that the user's module keeps belong to it

    async def each(items: list[Item]) -> list[Any]:
        return await asyncio.gather(*(function(**arguments(names, [item])) for item in items), return_exceptions=True)

    if several:
        return Grader(lambda items: runner.run(function(**arguments(names, items))), at_once=True)
    return Grader(lambda items: runner.run(each(items)), at_once=True, concurrent=True)


def _as_grade(value: Any) -> Grade | str:
    if isinstance(value, BaseException):
        return _told(value)
    try:
        return as_grade(value)
    except Exception as error:  # noqa: BLE001 - what a user's code returns may do anything when it is looked at
        return _told(error)


def _told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
