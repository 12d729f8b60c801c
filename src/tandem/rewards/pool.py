"""Grading in processes that can be killed: a grader that hangs, crashes or eats memory costs one item, never the run."""

import logging
import selectors
import time
from collections.abc import Callable, Sequence
from typing import Any

from tandem.errors import RunError
from tandem.progress import Progress
from tandem.rewards import check_name
from tandem.rewards.process import START_LIMIT_S, Starter, Terms, Worker
from tandem.rewards.types import Grade, Item
from tandem.rewards.work import MAX_TRIES, Work

log = logging.getLogger(__name__)

NO_VERDICT = {"failed", "crashed", "timeout"}


class RewardPool:
    """`num_workers` processes with the graders. Not for several threads at once; the thread that makes it must outlive it.

    Args:
        name: of the grader; see `tandem.rewards.check_name`.
        num_workers: processes.
        timeout_s: limit of one item, from handing it to a ready worker.
        also: names of further graders, whose scores stand in `Grade.also`.
        batch_size: most items in one call of a grader that takes several; its limit is theirs together, and if it is over each of them is
            graded again by itself.
        memory_limit_bytes: address space of a process; 0: no limit. sympy itself needs 0.3 GiB, 9**9**9 would need all there is.

    Raises:
        UserError: no such grader.
    """

    def __init__(
        self,
        name: str,
        num_workers: int,
        timeout_s: float,
        *,
        also: Sequence[str] = (),
        batch_size: int = 16,
        memory_limit_bytes: int = 2 << 30,
    ):
        for each in (name, *also):
            check_name(each)
        assert num_workers >= 1 and timeout_s > 0 and batch_size >= 1
        self.name, self._terms = name, Terms((name, *also), timeout_s, batch_size, memory_limit_bytes)
        self._starter = Starter(self._terms)
        self._workers = [Worker(self._starter, self._terms) for _ in range(num_workers)]

    def grade(self, items: Sequence[tuple[Any, ...]], on_progress: Progress | None = None) -> list[Grade]:
        """The grade of each item, in order.

        An item over the limit scores 0 with reason `timeout`, one that brings its worker down with `crashed`, one on which
        a grader raises with `failed`.

        Args:
            items: each an `Item`, or its first fields: (text, ground truth).
            on_progress: called with (done, total) after each item.

        Raises:
            RunError: a worker does not start, or the grader raises on every item.
        """
        work = Work([Item(*fields) for fields in items], on_progress)
        self._serve(work, lambda: work.done)
        self._report(work)
        return [grade for grade in work.grades if grade is not None]

    def wait_until_ready(self) -> None:
        """Until every process has loaded the graders.

        Raises:
            UserError: one cannot be loaded.
            RunError: a process does not start.
        """
        self._serve(Work([], None), lambda: all(worker.ready for worker in self._workers))

    def _serve(self, work: Work, is_over: Callable[[], bool]) -> None:
        assert not any(worker.items for worker in self._workers), "the last call did not end"
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.replies, selectors.EVENT_READ, worker)
            while not is_over():
                for worker in self._workers:
                    if worker.ready and not worker.items and work.waiting and not worker.take(work):
                        self._replace(worker, work, selector, "crashed")
                limit = max(0.0, min(worker.deadline for worker in self._workers) - time.monotonic())
                for key, _ in selector.select(limit):
                    if not key.data.read(work):
                        self._replace(key.data, work, selector, "crashed")
                for worker in list(self._workers):
                    if time.monotonic() > worker.deadline:
                        self._replace(worker, work, selector, "timeout")

    def _report(self, work: Work) -> None:
        """Say what the grader raised. Without a verdict on any item it is broken, and a run would silently train on zeros."""
        ends = {grade.reason for grade in work.grades if grade is not None}
        if ends <= NO_VERDICT and (work.tracebacks or len(work.items) > 1):  # a single item may be a bomb
            why = work.tracebacks[0].strip() if work.tracebacks else f"on each it ended with: {', '.join(sorted(ends))}"
            fix = "mend the grader, raise reward.timeout_s, or choose another"
            raise RunError(f"the reward {self.name!r} failed on every response", why, fix)
        if work.tracebacks:
            log.warning(
                "the reward %r failed on %d of %d responses; the first:\n%s",
                self.name,
                len(work.tracebacks),
                len(work.items),
                work.tracebacks[0],
            )

    def _replace(self, worker: Worker, work: Work, selector: selectors.BaseSelector, reason: str) -> None:
        selector.unregister(worker.replies)
        was_ready = worker.ready
        worker.end()
        if not was_ready and (reason == "timeout" or worker.num_tries == MAX_TRIES):
            raise RunError(
                f"a grading process for {self.name!r} did not start",
                "it died" if reason == "crashed" else f"not ready after {START_LIMIT_S:.0f} s",
                "read what it wrote to standard error, in the run's logs",
            )
        log.warning("a grading process: %s; replaced", reason)
        if worker.items:
            work.fail(worker.items, reason)
        fresh = self._fork(num_tries=1 if was_ready else worker.num_tries + 1)
        self._workers[self._workers.index(worker)] = fresh
        selector.register(fresh.replies, selectors.EVENT_READ, fresh)

    def _fork(self, num_tries: int) -> Worker:
        """A worker; when the process that forks them was killed, and they with it, of a new one."""
        try:
            return Worker(self._starter, self._terms, num_tries)
        except OSError:
            self._starter.end()
            self._starter = Starter(self._terms)
            return Worker(self._starter, self._terms, num_tries)

    def close(self) -> None:
        """Ends every process; safe to call twice."""
        for worker in self._workers:
            worker.end()
        self._workers = []
        self._starter.end()
