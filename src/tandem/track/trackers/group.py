"""The trackers of a run. Each works in a thread of its own: one that is slow, hangs or fails holds nothing up and ends nothing."""

import importlib
import json
import logging
import queue
import textwrap
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tandem.secrets import without_secrets
from tandem.track.trackers.types import TrackedRun

CLOSING_S = 60.0  # longest wait, at the end of a run, for a tracker that still sends
IDS = "trackers.json"
_LONGEST_REASON = 200  # characters of an error that are shown
_log = logging.getLogger(__name__)


def tracked_run(run_dir: Path, config: Mapping[str, Any], project: str, name: str, steps_done: int | None) -> TrackedRun:
    """The run for its trackers; its id is kept in logs/trackers.json, and is another one when the run begins anew.

    Args:
        config: nested settings.
        steps_done: when it goes on from a checkpoint; None: it begins.
    """
    file = run_dir / "logs" / IDS
    known = json.loads(file.read_text(encoding="utf-8"))["id"] if steps_done is not None and file.is_file() else None
    id = known or uuid.uuid4().hex[:12]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"id": id}), encoding="utf-8")
    settings = flat(without_secrets(dict(config)))
    return TrackedRun(id, name, project, run_dir, settings, steps_done if known else None)


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted key."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found


class Trackers:
    """Any number of trackers of one run."""

    def __init__(self, names: Sequence[str], run: TrackedRun, warn: Callable[[str], None]):
        """Args: warn: is told, once, about each tracker that fails."""
        self._feeds = [_Feed(name, run, warn) for name in names]
        for feed in self._feeds:
            feed.start()

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Hand a step's metrics on; returns at once. What is no number is left out."""
        numbers = {name: value for name, value in metrics.items() if value is not None and name != "step"}
        for feed in self._feeds:
            feed.put(step, numbers)

    def close(self, failed: bool = False, timeout_s: float = CLOSING_S) -> None:
        """Let each send what it has; waits `timeout_s` at most, for all of them together."""
        ends = time.monotonic() + timeout_s
        for feed in self._feeds:
            feed.end(failed)
        for feed in self._feeds:
            feed.wait(max(0.0, ends - time.monotonic()))


class _Feed(threading.Thread):
    def __init__(self, name: str, run: TrackedRun, warn: Callable[[str], None]):
        super().__init__(name=f"tandem-tracker-{name}", daemon=True)
        self.tracker, self.tracked, self.warn = name, run, warn
        self.off, self._failed, self._step = False, False, run.steps_done or 0
        self._queue: queue.SimpleQueue[tuple[int, dict[str, float]] | None] = queue.SimpleQueue()

    def put(self, step: int, numbers: dict[str, float]) -> None:
        if not self.off:
            self._queue.put((step, numbers))

    def end(self, failed: bool) -> None:
        self._failed = failed
        self._queue.put(None)

    def wait(self, timeout_s: float) -> None:
        self.join(timeout_s)
        if self.is_alive() and not self.off:
            self.off = True
            self.warn(f"tracker {self.tracker} has not taken everything by the end of the run; metrics.jsonl has it all")

    def run(self) -> None:
        try:
            started = importlib.import_module(f"tandem.track.trackers.{self.tracker}").start(self.tracked)
            while (item := self._queue.get()) is not None:
                self._step, numbers = item
                started.log(self._step, numbers)
            started.close(self._failed)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's library, which must never end a run
            self.off = True
            _log.warning("tracker %s: %s", self.tracker, without_secrets(traceback.format_exc()))
            lines = textwrap.wrap(without_secrets(str(error)), _LONGEST_REASON) or ["no message"]
            where = f"after step {self._step}" if self._step else "from the start"
            self.warn(
                f"tracker {self.tracker} is off {where}: {type(error).__name__}: {lines[0]}; the run goes on, metrics.jsonl has it all"
            )
