"""The pool's processes: one that has imported the graders, and the workers that it forks."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from tandem.errors import UserError
from tandem.rewards.wire import receive, send
from tandem.rewards.work import Work

KILL_SECONDS = 5.0
START_LIMIT_S = 120.0  # importing sympy on a loaded machine


@dataclass(frozen=True)
class Terms:
    """How items are graded."""

    names: tuple[str, ...]  # of the graders; the first one's grades are the items'
    timeout_s: float  # of one item
    batch_size: int  # items in one call, of a grader that takes several
    memory_limit_bytes: int  # address space of a process; 0: no limit


class Starter:
    """Forks a worker in milliseconds, where a start from nothing would import sympy again for every one that is killed."""

    def __init__(self, terms: Terms):
        self._socket, theirs = socket.socketpair()
        with theirs:
            numbers = [str(os.getpid()), str(theirs.fileno()), str(terms.memory_limit_bytes)]
            # -P: nothing is imported from where we stand
            command = [sys.executable, "-P", "-m", "tandem.rewards.starter", *numbers, *terms.names]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    def fork(self) -> tuple[int, int]:
        """A new worker, or soon one: descriptors to write requests to and to read replies from.

        Raises:
            BrokenPipeError: this process is gone.
        """
        (read_requests, requests), (replies, write_replies) = os.pipe(), os.pipe()
        try:
            socket.send_fds(self._socket, [b"f"], [read_requests, write_replies])
        except OSError:
            os.close(requests)
            os.close(replies)
            raise
        finally:
            os.close(read_requests)
            os.close(write_replies)
        return requests, replies

    def end(self) -> None:
        """Kill it; its workers die with it."""
        self._socket.close()
        self.process.kill()
        self.process.wait()


class Worker:
    """One process, with the items of at most one call in it."""

    def __init__(self, starter: Starter, terms: Terms, num_tries: int = 1):
        self.terms = terms
        requests, replies = starter.fork()
        self.requests, self.replies = os.fdopen(requests, "wb"), os.fdopen(replies, "rb")
        self.num_tries = num_tries  # to start, this one included
        self.pid = -1
        self.process = -1  # a descriptor of the process, once it is ready: a number could by then be another process's
        self.at_once = self.concurrent = False
        self.items: list[int] = []
        self.deadline = time.monotonic() + START_LIMIT_S

    @property
    def ready(self) -> bool:
        return self.process >= 0

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
        """Its message, of which at least a part has arrived. False when the process is gone.

        Raises:
            UserError: it cannot load a grader.
        """
        try:
            message = receive(self.replies)
        except EOFError:
            return False
        if self.ready:
            for item, grade in zip(self.items, message):
                work.answer(item, grade)
        elif "failure" in message:
            names = ", ".join(self.terms.names)
            raise UserError(f"a grader cannot be loaded: {names}", message["failure"].strip(), "mend it, or choose another")
        else:
            self.at_once, self.concurrent = message["at_once"], message["concurrent"]
            self.pid = message["pid"]
            self.process = os.pidfd_open(self.pid)
        self.items, self.deadline = [], float("inf")
        return True

    def end(self) -> None:
        """Kill the process. One that is not ready yet ends when it finds its pipes closed."""
        if self.ready:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.process, 0)  # it is there, and so its number is not another's
                os.killpg(self.pid, signal.SIGKILL)  # with what a grader has started
            select.select([self.process], [], [], KILL_SECONDS)
            os.close(self.process)
            self.process = -1
        for pipe in (self.replies, self.requests):
            with suppress(BrokenPipeError):  # a half-written request is flushed at close
                pipe.close()
