"""What a tracker is told and what it must offer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class TrackedRun:
    """The run as trackers know it."""

    id: str  # stays the same when the run goes on
    name: str
    project: str
    folder: Path
    settings: Mapping[str, Any]  # by dotted key, without secrets
    steps_done: int | None  # when the run goes on; None: a new one


class Started(Protocol):
    """Raises whatever its library raises; `group.py` takes it from there."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self, failed: bool) -> None: ...
