"""What one call of the pool still has to grade."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any

from tandem.progress import Progress
from tandem.rewards.types import Grade, Item

MAX_TRIES = 2  # an item whose worker dies twice is the reason; once may have been the out-of-memory killer


@dataclass
class Work:
    """What one call of `grade` still has to do. Items are numbered."""

    items: Sequence[Item]
    on_progress: Progress | None
    num_done: int = 0
    grades: list[Grade | None] = field(init=False)
    waiting: deque[int] = field(init=False)
    tries: list[int] = field(init=False)
    alone: set[int] = field(default_factory=set)  # of a call that failed: one of them is the reason
    tracebacks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.grades = [None] * len(self.items)
        self.tries = [0] * len(self.items)
        self.waiting = deque(range(len(self.items)))

    @property
    def done(self) -> bool:
        return self.num_done == len(self.items)

    def finish(self, item: int, grade: Grade) -> None:
        assert self.grades[item] is None
        self.grades[item] = grade
        self.num_done += 1
        if self.on_progress:
            self.on_progress(self.num_done, len(self.items))

    def answer(self, item: int, grade: dict[str, Any]) -> None:
        """A worker's reply about an item: the fields of its grade, or the traceback of what the grader raised."""
        if "traceback" in grade:
            self.tracebacks.append(grade["traceback"])
            grade = {"accuracy": 0.0, "format": 0.0, "reason": "failed"}
        self.finish(item, Grade(**grade))

    def next(self, most: int) -> list[int]:
        """The next items to grade in one call; they still wait until they are taken."""
        first, *others = list(islice(self.waiting, most))
        if first in self.alone:
            return [first]
        return [first, *takewhile(lambda item: item not in self.alone, others)]

    def fail(self, items: list[int], reason: str) -> None:
        """A call failed. Of several items each is graded again, by itself."""
        if len(items) > 1:
            self.alone.update(items)
            self.waiting.extendleft(reversed(items))
            return
        [item] = items
        self.tries[item] += 1
        if reason == "crashed" and self.tries[item] < MAX_TRIES:
            self.waiting.appendleft(item)
        else:
            self.finish(item, Grade(0.0, 0.0, reason))
