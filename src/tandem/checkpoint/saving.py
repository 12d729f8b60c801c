"""The checkpoint that is being written while the run goes on: one at a time, and a failure stops the run."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path

from tandem.errors import RunError, UserError
from tandem.progress import Progress, unseen

log = logging.getLogger(__name__)

LOOK_S = 0.5


class Saving:
    """`begin`, then `settle` as often as one likes; what failed is raised by the next of either."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="saving")
        self._pending: Future[Path] | None = None
        self._written = (0, 0)

    @property
    def is_settled(self) -> bool:
        """Nothing is being written, and nothing that was has yet to be told."""
        return self._pending is None

    def begin(self, complete: Callable[[Progress], Path]) -> None:
        """Run `complete` beside the loop. The save before has been settled: a second copy of the state would have no room."""
        assert self._pending is None, "one save at a time"
        self._written = (0, 0)
        self._pending = self._thread.submit(complete, self._advanced)

    def _advanced(self, done: int, total: int) -> None:
        self._written = (done, total)

    def settle(self, *, wait: bool = True, progress: Progress = unseen) -> bool:
        """Whether a save was completed since the last call.

        Args:
            wait: until it is; False: look only.
            progress: told while this waits, as `complete` tells it.

        Raises:
            RunError: it failed.
        """
        if self._pending is None or not (wait or self._pending.done()):
            return False
        while not self._pending.done():
            progress(*self._written)
            wait_for([self._pending], LOOK_S)
        pending, self._pending = self._pending, None
        pending.result()
        return True

    def close(self, limit_s: float) -> None:
        """The run is over, perhaps by a fault of its own, which is the one to tell: give a save that is under way time to be completed."""
        if self._pending is not None:
            wait_for([self._pending], limit_s)
            if not self._pending.done():
                log.warning("the last checkpoint was not complete after %.0f s", limit_s)
            elif isinstance(error := self._pending.exception(), RunError | UserError):
                log.warning("the last checkpoint failed: %s", error)
        self._thread.shutdown(wait=False, cancel_futures=True)
