"""The two ways to show progress: bars that move on a terminal, plain lines everywhere else."""

import time
from dataclasses import dataclass, field
from typing import TextIO

from rich import console as rich_console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from tandem.track.events import Table

PLAIN_WIDTH = 200  # a file has no width; a path must not be broken over lines


@dataclass
class Phase:
    name: str
    total: int
    done: int = 0
    started: float = field(default_factory=time.monotonic)

    def progress(self) -> str:
        """ "warm start 120/400 ... 30 s, about 70 s left" """
        seconds = time.monotonic() - self.started
        count = f" {self.done}/{self.total}" if self.total else f" {self.done}" if self.done else ""
        left = f", about {seconds / self.done * (self.total - self.done):.0f} s left" if 0 < self.done < self.total else ""
        return f"{self.name}{count} ... {seconds:.0f} s{left}"


class PlainView:
    """One line for each thing that happens. A phase that comes back every step is announced the first time only."""

    moves = False  # whether open phases are seen to move between two lines

    def __init__(self, file: TextIO):
        self.console = self._make_console(file)
        self.last_output = time.monotonic()
        self._seen: set[str] = set()

    def _make_console(self, file: TextIO) -> rich_console.Console:
        return rich_console.Console(file=file, force_terminal=False, color_system=None, width=PLAIN_WIDTH)

    def started(self, phase: Phase) -> None:
        if phase.name not in self._seen:
            self.line(f"{phase.name} ...")

    def advanced(self, phase: Phase) -> None:
        pass  # the ticker tells, when it takes long

    def ended(self, name: str, seconds: float) -> None:
        if name not in self._seen:
            self.line(f"{name}: {seconds:.1f} s")
        self._seen.add(name)

    def line(self, text: str) -> None:
        self.console.print(_text(text), soft_wrap=True)
        self.last_output = time.monotonic()

    def table(self, table: Table) -> None:
        self.console.print(_rich_table(table))
        self.last_output = time.monotonic()

    def stop(self) -> None:
        pass


class LiveView(PlainView):
    """A bar for each open phase below the lines."""

    moves = True

    def __init__(self, file: TextIO):
        super().__init__(file)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=self.console, transient=True, refresh_per_second=4)
        self._bars: dict[str, TaskID] = {}
        self._progress.start()

    def _make_console(self, file: TextIO) -> rich_console.Console:
        return rich_console.Console(file=file, force_terminal=True)

    def started(self, phase: Phase) -> None:
        self._bars[phase.name] = self._progress.add_task(phase.name, total=phase.total or None)

    def advanced(self, phase: Phase) -> None:
        self._progress.update(self._bars[phase.name], completed=phase.done, total=phase.total or None)

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
