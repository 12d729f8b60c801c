"""Progress inside one call of a training rank: pushed to the controller, since the rank answers nobody before the call is over."""

import time
from typing import Any


class PushedProgress:
    """Call with (done, total). Nothing waits for the other side; one push in `every_s` seconds at most, and one when all is done.

    Args:
        controller: an actor with a method `advanced`; None: nobody listens.
    """

    def __init__(self, controller: Any | None, every_s: float = 0.5):
        self._controller, self._every_s, self._told = controller, every_s, float("-inf")

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._controller is not None and (done == total or now - self._told >= self._every_s):
            self._told = now
            self._controller.advanced.remote(done, total)
