"""Shows the events of a run to the person who waits: never ten seconds of silence."""

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from tandem.track.events import Event, Note, PhaseAdvanced, PhaseEnded, PhaseStarted, StepDone, Table
from tandem.track.json_view import JsonView
from tandem.track.views import LiveView, Phase, PlainView


class Console:
    """Takes events from any thread. Use as a context manager: leaving it gives the terminal back.

    Args:
        quiet: show tables only.
        live: bars that move; None: when `file` is a terminal.
        file: where to; None: standard output.
        silence_s: a plain line says what is going on after this many seconds without one.
        verbose: all metrics of a step, and every phase each time.
        as_json: one JSON object a line, see `json_view.py`.

    When nobody reads any more (`tandem train ... | head`), nothing more is shown and `on_reader_gone` is called, once.
    """

    def __init__(
        self,
        quiet: bool = False,
        live: bool | None = None,
        file: TextIO | None = None,
        silence_s: float = 8.0,
        verbose: bool = False,
        as_json: bool = False,
    ):
        self.phase_seconds: dict[str, float] = {}  # total of each ended phase, in order of first end
        self.on_reader_gone: Callable[[], object] = lambda: None
        self.is_read = True
        self._num_ended: dict[str, int] = {}
        self._quiet, self._silence_s, self._verbose, self._as_json = quiet, silence_s, verbose, as_json
        self._file = file or sys.stdout
        self._live = (self._file.isatty() if live is None else live) and not quiet and not as_json
        self._phases: dict[str, Phase] = {}
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        view = JsonView if self._as_json else LiveView if self._live else PlainView
        self._view: JsonView | PlainView = view(self._file, self._verbose)
        self._ticker = threading.Thread(target=self._tick, daemon=True, name="tandem-console")
        self._ticker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stopped.set()
        self._ticker.join()
        self._while_read(self._view.stop)

    def emit(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, PhaseEnded):
                self.phase_seconds[event.name] = self.phase_seconds.get(event.name, 0.0) + event.seconds
                self._num_ended[event.name] = self._num_ended.get(event.name, 0) + 1
            if isinstance(event, Table) or not self._quiet:
                self._while_read(lambda: self._show(event))

    def _while_read(self, show: Callable[[], None]) -> None:
        """Call it, unless the other end of the pipe is closed."""
        if not self.is_read:
            return
        try:
            show()
        except BrokenPipeError:
            self.is_read = False
            with open(os.devnull, "w") as nowhere:  # Python itself writes what is left there when it ends
                os.dup2(nowhere.fileno(), self._file.fileno())
            self.on_reader_gone()

    def _show(self, event: Event) -> None:
        match event:
            case PhaseStarted(name, total):
                self._phases[name] = Phase(name, total, expected_s=self._usual_seconds(name))
                self._view.started(self._phases[name])
            case PhaseAdvanced(name, done, total) if name in self._phases:
                phase = self._phases[name]
                phase.done, phase.total = done, total or phase.total
                self._view.advanced(phase)
            case PhaseEnded(name, seconds):
                self._phases.pop(name, None)
                self._view.ended(name, seconds)
            case StepDone(metrics):
                self._view.step(metrics)
            case Note(text):
                self._view.line(text)
            case Table():
                self._view.table(event)

    def _usual_seconds(self, name: str) -> float:
        """How long the phase took before, on average; 0: it is the first time."""
        return self.phase_seconds[name] / self._num_ended[name] if name in self._num_ended else 0.0

    def _tick(self) -> None:
        while not self._stopped.wait(min(0.5, self._silence_s / 4)):
            with self._lock:
                if not self._quiet:
                    self._while_read(self._show_life)

    def _show_life(self) -> None:
        for phase in self._phases.values():
            if phase.expected_s and not phase.total:
                self._view.advanced(phase)
        if not (self._view.moves and self._phases) and time.monotonic() - self._view.last_output >= self._silence_s:
            self._view.working(list(self._phases.values()), time.monotonic() - self._started)
