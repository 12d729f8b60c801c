"""The pool's bookkeeping: what is still to grade, and the processes that grade it."""

import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, takewhile
from os import getpid

from tandem.rewards.types import Grade, Item
from tandem.rewards.wire import receive, send

START_LIMIT_S = 120.0  # importing sympy on a loaded machine
MAX_TRIES = 2  # an item whose worker dies twice is the reason; once may have been the out-of-memory killer


@dataclass
class Work:
    """What one call of `grade` still has to do. Items are numbered."""

    items: Sequence[Item]
    on_progress: Callable[[int, int], None] | None
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


@dataclass(frozen=True)
class Terms:
    """How items are graded."""

    names: tuple[str, ...]  # of the graders; the first one's grades are the items'
    timeout_s: float  # of one item
    batch_size: int  # items in one call, of a grader that takes several
    memory_limit_bytes: int  # address space of a process; 0: no limit


class Worker:
    """One process, with the items of at most one call in it."""

    def __init__(self, terms: Terms, num_tries: int = 1):
        self.terms = terms
        # -P: nothing is imported from where we stand
        command = [sys.executable, "-P", "-m", "tandem.rewards.worker", str(getpid()), str(terms.memory_limit_bytes), *terms.names]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin and self.process.stdout
        self.requests, self.replies = self.process.stdin, self.process.stdout
        self.num_tries = num_tries  # to start, this one included
        self.ready, self.at_once, self.concurrent = False, False, False
        self.items: list[int] = []
        self.deadline = time.monotonic() + START_LIMIT_S

    def take(self, work: Work) -> bool:
        """Take the next items and start their clock. False when the process died at rest; the items then still wait."""
        items = work.next(self.terms.batch_size if self.at_once else 1)
        try:
            send(self.requests, [work.items[item] for item in items])
        except BrokenPipeError:
            return False
        for _ in items:
            work.waiting.popleft()
        self.items = items
        self.deadline = time.monotonic() + self.terms.timeout_s * (1 if self.concurrent else len(items))
        return True

    def read(self, work: Work) -> bool:
        """Its message, of which at least a part has arrived. False when the process is gone."""
        try:
            message = receive(self.replies)
        except EOFError:
            return False
        if not self.items:
            self.ready, self.at_once, self.concurrent = True, message["at_once"], message["concurrent"]
        for item, grade in zip(self.items, message if self.items else []):
            if "traceback" in grade:
                work.tracebacks.append(grade["traceback"])
                work.finish(item, Grade(0.0, 0.0, "failed"))
            else:
                work.finish(item, Grade(**grade))
        self.items, self.deadline = [], float("inf")
        return True

    def end(self, grace_s: float = 0.0) -> int:
        """Give the process `grace_s` to end by itself, then kill it. Returns the exit code."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(grace_s)
        self.process.kill()
        for pipe in (self.replies, self.requests):
            with suppress(BrokenPipeError):  # a half-written request is flushed at close
                pipe.close()
        return self.process.wait()
