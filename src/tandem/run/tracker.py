"""What the controller tells the outside: events for the terminal, records in the run's folder."""

import errno
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tandem.config.schema import Config
from tandem.progress import Progress, part_of
from tandem.run.samples import Sample
from tandem.secrets import without_secrets
from tandem.track.events import Event, Note, PhaseAdvanced, PhaseEnded, PhaseStarted, StepDone
from tandem.track.metrics import MetricsLog
from tandem.track.notes import append_note
from tandem.track.rollouts import remove_rollouts_after, write_rollouts
from tandem.track.trackers.group import Trackers, tracked_run


class Tracker:
    """Events are kept until the terminal's side fetches them with `take`. Safe to use from several threads."""

    def __init__(self, run_dir: Path):
        self.run_dir, self.metrics = run_dir, MetricsLog(run_dir)
        self.rows: list[dict[str, float | None]] = []
        self.phase_seconds: dict[str, float] = {}
        self._events: list[Event] = []
        self._open: list[str] = []
        self._part, self._counted = (0, 1), False
        self._news = threading.Condition()
        self._outside: Trackers | None = None
        run_dir.mkdir(exist_ok=True)
        self._folder = os.open(run_dir, os.O_RDONLY)  # held, so that no other folder gets its number

    def emit(self, event: Event) -> None:
        with self._news:
            self._events.append(event)
            self._news.notify_all()

    def take(self, timeout_s: float) -> list[Event]:
        """Events since the last call; waits up to `timeout_s` for the first."""
        with self._news:
            self._news.wait_for(lambda: bool(self._events), timeout_s)
            events, self._events = self._events, []
            return events

    def note(self, text: str) -> None:
        """Say it, and keep it in logs/notes.jsonl."""
        append_note(self.run_dir, text)
        self.emit(Note(without_secrets(text)))

    @contextmanager
    def phase(self, name: str, total: int = 0) -> Iterator[Progress]:
        """Show a piece of work while it lasts; yields a function (done, total) for its progress."""
        began = time.monotonic()
        self._open.append(name)
        self._part, self._counted = (0, 1), total > 0
        self.emit(PhaseStarted(name, total))
        try:
            yield self.progress(name)
        finally:
            self._open.remove(name)
            seconds = time.monotonic() - began
            self.phase_seconds[name] = self.phase_seconds.get(name, 0.0) + seconds
            self.emit(PhaseEnded(name, seconds))

    def progress(self, name: str) -> Progress:
        """Progress of the open phase `name`."""
        return lambda done, total: self.emit(PhaseAdvanced(name, done, total))

    def advanced(self, done: int, total: int) -> None:
        """Progress of whichever phase is open, counted by the controller."""
        self._counted = True
        if self._open:
            self.emit(PhaseAdvanced(self._open[-1], done, total))

    def advanced_within(self, done: int, total: int) -> None:
        """Progress of what a rank was asked in the open phase, or in its present part. A phase counted otherwise keeps its count."""
        if self._open and not self._counted:
            part_of(self.progress(self._open[-1]), *self._part)(done, total)

    def part(self, number: int, of: int) -> None:
        """The open phase consists of `of` equal pieces of work, and that of this number, from 0, begins."""
        self._part = number, of

    def go_on_after(self, step: int) -> None:
        """Forget what was recorded of later steps, which will be done again; -1: of all."""
        self.rows = self.metrics.cut_after(step)
        remove_rollouts_after(self.run_dir, step)

    def was_validated(self, step: int) -> bool:
        return any(row.get("step") == step and "val/accuracy" in row for row in self.rows)

    def best_step(self, among: Sequence[int]) -> int | None:
        """Of these steps the one with the best held-out accuracy, the later of equals; None when none was validated."""
        scored = [(row["val/accuracy"], row["step"]) for row in self.rows if row.get("val/accuracy") is not None and row["step"] in among]
        return int(max(scored)[1]) if scored else None

    def step(self, metrics: dict[str, float]) -> None:
        self._record(metrics)

    def validation(self, step: int, samples: list[Sample], more: dict[str, float] | None = None) -> float:
        """Record held-out accuracy, over all rows and by source, and `more` metrics; returns the overall accuracy."""
        accuracy = float(np.mean([s.accuracy for s in samples]))
        by_source: dict[str, list[float]] = {}
        for sample in samples:
            by_source.setdefault(sample.prompt.row.data_source, []).append(sample.accuracy)
        metrics: dict[str, float] = {"step": step, "val/accuracy": accuracy, "val/reward": float(np.mean([s.reward for s in samples]))}
        metrics |= {f"val/accuracy_{name.lower().replace('/', '_').replace('-', '_')}": float(np.mean(v)) for name, v in by_source.items()}
        self._record(metrics | (more or {}))
        return accuracy

    def rollouts(self, step: int, rows: list[dict[str, Any]]) -> None:
        self._check_folder()
        write_rollouts(self.run_dir, step, rows)

    def open_trackers(self, config: Config, steps_done: int | None) -> None:
        """Metrics go to `trainer.trackers`, too, from now on. Args: steps_done: when the run goes on from a checkpoint."""
        trainer = config.trainer
        if trainer.trackers:
            name = trainer.experiment_name or self.run_dir.name
            run = tracked_run(self.run_dir, config.model_dump(mode="json"), trainer.project_name or "tandem", name, steps_done)
            self._outside = Trackers(trainer.trackers, run, self.note)

    def close_trackers(self, failed: bool) -> None:
        """Let them send what they have."""
        if self._outside:
            self._outside.close(failed)

    def _check_folder(self) -> None:
        """Raises OSError when the run's folder was removed or moved: its records must not go on in a new one, without its checkpoints."""
        if not os.path.samestat(os.stat(self.run_dir), os.fstat(self._folder)):
            raise FileNotFoundError(errno.ENOENT, "the run's folder was removed while it was running", str(self.run_dir))

    def _record(self, metrics: dict[str, float]) -> None:
        self._check_folder()
        row = self.metrics.append(metrics)
        self.rows.append(row)
        if self._outside:
            self._outside.log(int(metrics["step"]), row)
        self.emit(StepDone(row))
