"""Shows the events of a run to the person who waits: never ten seconds of silence."""

import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self, TextIO

from tandem.track.events import Event, Note, PhaseAdvanced, PhaseEnded, PhaseStarted, StepDone, Table
from tandem.track.views import LiveView, Phase, PlainView

_STEP_LINE = (  # metric, label, format
    ("reward/mean", "reward", ".3f"),
    ("accuracy/mean", "accuracy", ".3f"),
    ("val/accuracy", "held-out", ".3f"),
    ("response_length/mean", "length", ".1f"),
    ("kl/ref", "kl", ".2e"),
    ("fidelity/logprob_abs_diff_mean", "|Δlogp|", ".1e"),
    ("loss/policy", "loss", ".4f"),
    ("grad_norm", "grad", ".2f"),
    ("tokens_per_s", "tokens/s", ".0f"),
    ("time/step_s", "seconds", ".1f"),
)


class Console:
    """Takes events from any thread. Use as a context manager: leaving it gives the terminal back.

    Args:
        quiet: show tables only.
        live: bars that move; None: when `file` is a terminal.
        file: where to; None: standard output.
        silence_s: a plain line says what is going on after this many seconds without one.
    """

    def __init__(self, quiet: bool = False, live: bool | None = None, file: TextIO | None = None, silence_s: float = 8.0):
        self.phase_seconds: dict[str, float] = {}  # total of each ended phase, in order of first end
        self._quiet, self._silence_s = quiet, silence_s
        self._file = file or sys.stdout
        self._live = (self._file.isatty() if live is None else live) and not quiet
        self._phases: dict[str, Phase] = {}
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        self._view = LiveView(self._file) if self._live else PlainView(self._file)
        self._ticker = threading.Thread(target=self._tick, daemon=True, name="tandem-console")
        self._ticker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stopped.set()
        self._ticker.join()
        self._view.stop()

    def emit(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, PhaseEnded):
                self.phase_seconds[event.name] = self.phase_seconds.get(event.name, 0.0) + event.seconds
            if isinstance(event, Table):
                self._view.table(event)
            elif not self._quiet:
                self._show(event)

    def _show(self, event: Event) -> None:
        match event:
            case PhaseStarted(name, total):
                self._phases[name] = Phase(name, total)
                self._view.started(self._phases[name])
            case PhaseAdvanced(name, done, total) if name in self._phases:
                phase = self._phases[name]
                phase.done, phase.total = done, total or phase.total
                self._view.advanced(phase)
            case PhaseEnded(name, seconds):
                self._phases.pop(name, None)
                self._view.ended(name, seconds)
            case StepDone(metrics):
                self._view.line(step_line(metrics))
            case Note(text):
                self._view.line(text)

    def _tick(self) -> None:
        while not self._stopped.wait(min(0.5, self._silence_s / 4)):
            with self._lock:
                seen_to_move = self._view.moves and self._phases
                if self._quiet or seen_to_move or time.monotonic() - self._view.last_output < self._silence_s:
                    continue
                phases = " | ".join(phase.progress() for phase in self._phases.values())
                self._view.line(phases or f"working ... {time.monotonic() - self._started:.0f} s")


def step_line(metrics: Mapping[str, float | None]) -> str:
    """One line about a step: the metrics that are there, `nan` for a value that was no finite number."""
    shown = [
        f"{label} {'nan' if (value := metrics[name]) is None else format(value, spec)}"
        for name, label, spec in _STEP_LINE
        if name in metrics
    ]
    return "  ".join([f"step {metrics.get('step')}", *shown])
