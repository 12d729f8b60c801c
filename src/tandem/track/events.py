"""What the parts of a run tell about themselves. Plain values, so that an event can come from another process by pickle."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PhaseStarted:
    """Work began that may take a while. Phases may lie within one another; a name is unique among the open ones."""

    name: str
    total: int = 0  # how many units `PhaseAdvanced.done` counts to; 0: not known


@dataclass(frozen=True)
class PhaseAdvanced:
    name: str
    done: int
    total: int = 0  # 0: as before


@dataclass(frozen=True)
class PhaseEnded:
    name: str
    seconds: float


@dataclass(frozen=True)
class StepDone:
    metrics: Mapping[str, float | None]  # by metric name, `step` among them


@dataclass(frozen=True)
class Note:
    """A choice made or a fact worth a line."""

    text: str


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    below: tuple[tuple[str, str], ...] = ()  # name and path: lines of their own, never broken


Event = PhaseStarted | PhaseAdvanced | PhaseEnded | StepDone | Note | Table
