"""What a model talks to in a rollout of several turns: a tool, a game, a simulated user.

One object for each sample. To write one: a class with `reset` and `step`, named by `rollout.environment=FILE.py:CLASS`; one of ours has a
line in ENVIRONMENTS.
"""

import inspect
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, SupportsFloat

from tandem.config.userfile import load_from
from tandem.data.types import Row
from tandem.errors import UserError

ENVIRONMENTS = {"calculator": "tandem.rollout.calculator:Calculator"}


@dataclass(frozen=True)
class Message:
    """What the environment says, as the chat template takes it."""

    content: str  # each "<image>" stands for the next of `images`
    images: list[bytes] = field(default_factory=list)  # encoded files
    role: str = "user"  # Qwen3.5's template renders a tool's answer as a user's turn in <tool_response>


@dataclass(frozen=True)
class Step:
    """The answer to one turn of the model. Without messages, or when done, the sample ends with that turn."""

    messages: list[Message] = field(default_factory=list)
    done: bool = False
    score: float = 0.0  # added to the sample's reward


class Environment(Protocol):
    """A step may take its time, but must not block: what computes or waits belongs into `await asyncio.to_thread(...)`, or a process."""

    def reset(self, row: Row) -> Row:
        """Begin with this row; returns it with the messages that the model sees first. Equal for equal rows: the prompt is made of it once,
        and each sample of the prompt begins with it."""
        ...

    async def step(self, text: str) -> Step:
        """What the environment says to the model's turn; `text` holds what the template opened of it, too."""
        ...


@dataclass(frozen=True)
class Maker:
    make: Callable[[], Environment]

    def opened(self, row: Row) -> Row:
        """The row as a model sees it first. Raises UserError when `reset` fails, or gives none."""
        try:
            opened = self.make().reset(row)
        except Exception as error:  # a user's code
            raise UserError(f"rollout.environment fails at row {row.id}", traceback.format_exc().strip(), "mend its reset") from error
        if not isinstance(opened, Row):
            raise UserError("rollout.environment is no environment", f"its reset returned {opened!r:.60}", "return the row, or one like it")
        return opened


def what_is_wrong(step: object) -> str:
    """Why `step`, made by a user's code, is no `Step` that can be used; empty when it is."""
    if not isinstance(step, Step):
        return f"it returned {step!r:.60}"
    if not isinstance(step.score, SupportsFloat) or not math.isfinite(step.score):
        return f"its score is {step.score!r:.60}"
    for message in step.messages:
        if not isinstance(message, Message):
            return f"one of its messages is {message!r:.60}"
        if not isinstance(message.content, str) or not all(isinstance(image, bytes) for image in message.images):
            return "a message's content must be text, and its images encoded files as bytes"
    return ""


def load_environment(name: str) -> Maker:
    """Raises UserError when there is no such environment, or it lacks a method."""
    if ".py:" in name:
        try:
            made, folder = load_from(name)
            folder.stay()
        except (OSError, SyntaxError, ImportError, AttributeError) as error:
            raise UserError(
                f"rollout.environment = {name} cannot be loaded", f"{type(error).__name__}: {error}", "give FILE.py:CLASS"
            ) from error
    elif name in ENVIRONMENTS:
        module, _, inside = ENVIRONMENTS[name].partition(":")
        made = getattr(import_module(module), inside)
    else:
        there = f"there are: {', '.join(ENVIRONMENTS)}; FILE.py:CLASS"
        raise UserError(f"unknown environment {name!r}", there, f"set rollout.environment={next(iter(ENVIRONMENTS))}")
    _check(name, made)
    return Maker(made)


def _check(name: str, made: Any) -> None:
    if not callable(getattr(made, "reset", None)) or not inspect.iscoroutinefunction(getattr(made, "step", None)):
        raise UserError(
            f"rollout.environment = {name} is no environment",
            "it needs a method reset(row) and an async method step(text)",
            "see tandem/rollout/environment.py",
        )
