"""The two ways to show progress: bars that move on a terminal, plain lines everywhere else."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from rich import console as rich_console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from tandem.track.events import Table
from tandem.track.steps import other_metrics, step_line

PLAIN_WIDTH = 200  # a file has no width; a path must not be broken over lines


@dataclass
class Phase:
    name: str
    total: int
    done: int = 0
    started: float = field(default_factory=time.monotonic)
    expected_s: float = 0.0  # what it took before; 0: not known

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def count(self) -> str:
        return f"{self.done}/{self.total}" if self.total else str(self.done or "")

    def progress(self) -> str:
        """ "warm start 120/400 ... 30 s, about 70 s left" """
        seconds = self.seconds
        left = seconds / self.done * (self.total - self.done) if 0 < self.done < self.total else 0.0
        if not self.total:
            left = max(0.0, self.expected_s - seconds)
        return f"{self.name}{' ' * bool(self.count)}{self.count} ... {seconds:.0f} s" + (f", about {left:.0f} s left" if left else "")


class _Console(rich_console.Console):
    def on_broken_pipe(self) -> None:
        raise  # rich would end the process; whoever writes here knows better


class PlainView:
    """One line for each thing that happens. A phase that comes back every step is announced the first time only."""

    moves = False  # whether open phases are seen to move between two lines

    def __init__(self, file: TextIO, verbose: bool = False):
        self.verbose = verbose
        self.console = self._make_console(file)
        self.last_output = time.monotonic()
        self._seen: set[str] = set()

    def _make_console(self, file: TextIO) -> rich_console.Console:
        return _Console(file=file, force_terminal=False, color_system=None, width=PLAIN_WIDTH)

    def started(self, phase: Phase) -> None:
        if phase.name not in self._seen:
            self.line(f"{phase.name} ...")

    def advanced(self, phase: Phase) -> None:
        pass  # the ticker tells, when it takes long

    def ended(self, name: str, seconds: float) -> None:
        if self.verbose or name not in self._seen:
            self.line(f"{name}: {seconds:.1f} s")
        self._seen.add(name)

    def step(self, metrics: Mapping[str, float | None]) -> None:
        self.line(step_line(metrics))
        if self.verbose and (others := other_metrics(metrics)):
            self.line(f"  {others}")

    def working(self, phases: Sequence[Phase], seconds: float) -> None:
        """What is open, or that there is life at all."""
        self.line(" | ".join(phase.progress() for phase in phases) or f"working ... {seconds:.0f} s")

    def line(self, text: str) -> None:
        self.console.print(_text(text), soft_wrap=True)
        self.last_output = time.monotonic()

    def table(self, table: Table) -> None:
        self.console.print(_rich_table(table))
        for name, path in table.below:
            self.console.print(_text(f"{name}: {path}"), soft_wrap=True)
        self.last_output = time.monotonic()

    def stop(self) -> None:
        pass


class LiveView(PlainView):
    """A bar for each open phase below the lines: by what is done of it, else by the seconds that it took before."""

    moves = True

    def __init__(self, file: TextIO, verbose: bool = False):
        super().__init__(file, verbose)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=self.console, transient=True, refresh_per_second=4)
        self._bars: dict[str, TaskID] = {}
        self._progress.start()

    def _make_console(self, file: TextIO) -> rich_console.Console:
        return _Console(file=file, force_terminal=True)

    def started(self, phase: Phase) -> None:
        self._bars[phase.name] = self._progress.add_task(phase.name, total=phase.total or phase.expected_s or None, count=phase.count)

    def advanced(self, phase: Phase) -> None:
        total = phase.total or phase.expected_s or None
        done = phase.done if phase.total or not phase.expected_s else min(phase.seconds, 0.99 * phase.expected_s)
        self._progress.update(self._bars[phase.name], completed=done, total=total, count=phase.count)

    def ended(self, name: str, seconds: float) -> None:
        if name in self._bars:
            self._progress.remove_task(self._bars.pop(name))
        super().ended(name, seconds)

    def stop(self) -> None:
        self._progress.stop()


def _text(text: str) -> Text:
    return Text("".join(c for c in text if c.isprintable() or c in "\n\t"))


def _rich_table(table: Table) -> RichTable:
    shown = RichTable(title=table.title, title_justify="left", show_header=any(table.columns))
    for column in table.columns:
        shown.add_column(column, overflow="fold")
    for row in table.rows:
        shown.add_row(*map(_text, row))
    return shown
