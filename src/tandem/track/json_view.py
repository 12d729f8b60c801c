"""Progress for programs: one JSON object a line, each with `time` (seconds since 1970) and `event`.

| event | holds |
|---|---|
| `phase_started` | `name`, `total` (0: not known) |
| `phase_advanced` | `name`, `done`, `total`; at most one a second and phase |
| `phase_ended` | `name`, `seconds` |
| `step` | `metrics` |
| `note` | `text` |
| `working` | `phases` (names), after a silence |
| `table` | `title`, `rows` |
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from tandem.track.events import Table
from tandem.track.views import Phase

EVERY_S = 1.0


class JsonView:
    """The same calls as `PlainView`."""

    moves = False

    def __init__(self, file: TextIO, verbose: bool = False):
        self._file, self.last_output = file, time.monotonic()
        self._advanced: dict[str, float] = {}  # phase -> when its progress was told

    def _write(self, event: str, **values: Any) -> None:
        self._file.write(json.dumps({"time": round(time.time(), 3), "event": event, **values}, ensure_ascii=False) + "\n")
        self._file.flush()
        self.last_output = time.monotonic()

    def started(self, phase: Phase) -> None:
        self._write("phase_started", name=phase.name, total=phase.total)

    def advanced(self, phase: Phase) -> None:
        if phase.total and time.monotonic() - self._advanced.get(phase.name, 0.0) >= EVERY_S:
            self._advanced[phase.name] = time.monotonic()
            self._write("phase_advanced", name=phase.name, done=phase.done, total=phase.total)

    def ended(self, name: str, seconds: float) -> None:
        self._write("phase_ended", name=name, seconds=round(seconds, 3))

    def step(self, metrics: Mapping[str, float | None]) -> None:
        self._write("step", metrics=dict(metrics))

    def line(self, text: str) -> None:
        self._write("note", text=text)

    def working(self, phases: Sequence[Phase], seconds: float) -> None:
        self._write("working", phases=[phase.name for phase in phases])

    def table(self, table: Table) -> None:
        self._write("table", title=table.title, rows=[*table.rows, *table.below])

    def stop(self) -> None:
        pass
