"""The pool's bookkeeping: what is still to grade, and the processes that grade it."""

import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os import getpid
from typing import cast

from tandem.rewards.types import Grade
from tandem.rewards.wire import receive, send

START_LIMIT_S = 120.0  # importing sympy on a loaded machine
MAX_TRIES = 2  # an item whose worker dies twice is the reason; once may have been the out-of-memory killer


@dataclass
class Work:
    """What one call of `grade` still has to do."""

    items: Sequence[tuple[str, str]]
    on_progress: Callable[[int, int], None] | None
    num_done: int = 0
    grades: list[Grade | None] = field(init=False)
    waiting: deque[int] = field(init=False)
    tries: list[int] = field(init=False)
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

    def fail(self, item: int, reason: str) -> None:
        self.tries[item] += 1
        if reason == "crashed" and self.tries[item] < MAX_TRIES:
            self.waiting.appendleft(item)
        else:
            self.finish(item, Grade(0.0, 0.0, reason))


class Worker:
    """One process, at most one item in it."""

    def __init__(self, name: str, num_tries: int = 1):
        command = [sys.executable, "-P", "-m", "tandem.rewards.worker", name, str(getpid())]  # -P: nothing is imported from where we stand
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin and self.process.stdout
        self.requests, self.replies = self.process.stdin, self.process.stdout
        self.num_tries = num_tries  # to start, this one included
        self.ready, self.item = False, cast("int | None", None)
        self.deadline = time.monotonic() + START_LIMIT_S

    def take(self, work: Work, timeout_s: float) -> bool:
        """Take the next item and start its clock. False when the process died at rest; the item then still waits."""
        try:
            send(self.requests, work.items[work.waiting[0]])
        except BrokenPipeError:
            return False
        self.item, self.deadline = work.waiting.popleft(), time.monotonic() + timeout_s
        return True

    def read(self, work: Work) -> bool:
        """Its message, of which at least a part has arrived. False when the process is gone."""
        try:
            message = receive(self.replies)
        except EOFError:
            return False
        if self.item is None:
            self.ready = True
        elif "traceback" in message:
            work.tracebacks.append(message["traceback"])
            work.finish(self.item, Grade(0.0, 0.0, "failed"))
        else:
            work.finish(self.item, Grade(**message))
        self.item, self.deadline = None, float("inf")
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
