"""What a finished run amounts to, from its metrics: a dictionary for `--json`, and a table for people."""

import os
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from tandem.track.events import Table

Metrics = Mapping[str, float | None]

_LABELS = {
    "steps": "steps",
    "val_accuracy_before": "held-out accuracy before",
    "val_accuracy_after": "held-out accuracy after",
    "reward_first5": "reward, first 5 steps",
    "reward_last5": "reward, last 5 steps",
    "tokens_per_s": "tokens/s",
    "phase_seconds": "time in",
    "stopped": "stopped",
}
LEAST_SECONDS = 0.05  # of a phase that is worth a line
PATHS = {"run_dir": "run", "checkpoint": "checkpoint", "export": "export (Hugging Face)", "report": "report"}


def summarize(rows: Sequence[Metrics], phase_seconds: Mapping[str, float], paths: Mapping[str, str]) -> dict[str, Any]:
    """The figures of a run; None where the metrics do not tell.

    Args:
        rows: lines of metrics.jsonl. A line with `val/accuracy` and step 0 is the validation before the first step.
        phase_seconds: total seconds of each phase, in the order to show.
        paths: what the run left, by name (`checkpoint`, `export`, `report`).
    """
    rewards = values_of(rows, "reward/mean")
    accuracy = [(row.get("step"), value) for row in rows if (value := row.get("val/accuracy")) is not None]
    seconds = [(value, row["time/step_s"]) for row in rows if (value := row.get("tokens_per_s")) is not None and row.get("time/step_s")]
    total = sum(step_s or 0 for _, step_s in seconds)
    return {
        "steps": len(rewards),
        "val_accuracy_before": accuracy[0][1] if accuracy and accuracy[0][0] == 0 else None,
        "val_accuracy_after": accuracy[-1][1] if accuracy and accuracy[-1][0] != 0 else None,
        "reward_first5": fmean(rewards[:5]) if rewards else None,
        "reward_last5": fmean(rewards[-5:]) if rewards else None,
        "tokens_per_s": sum(rate * (step_s or 0) for rate, step_s in seconds) / total if total else None,
        "phase_seconds": dict(phase_seconds),
        **paths,
    }


def summary_table(summary: Mapping[str, Any]) -> Table:
    """A summary for people: known figures first in a fixed order, then whatever else it holds; what is None is left out."""
    rows: list[tuple[str, str]] = []
    for key in [*_LABELS, *(key for key in summary if key not in _LABELS and key not in PATHS)]:
        value, label = summary.get(key), _LABELS.get(key, key)
        if key == "stopped":
            rows += [(label, "before its end; resume=auto goes on")] if value else []
        elif key == "phase_seconds":
            rows += [(f"{label} {name}", duration(seconds)) for name, seconds in (value or {}).items() if seconds >= LEAST_SECONDS]
        elif isinstance(value, Mapping):
            parts = {name: part for name, part in value.items() if not isinstance(part, Mapping)}  # deeper ones have a table of their own
            rows += [(f"{label} {name}", _show(part)) for name, part in parts.items()]
        elif value is not None:
            rows.append((label, _show(value)))
    below = [(label, _from_here(str(summary[key]))) for key, label in PATHS.items() if summary.get(key)]
    return Table("Summary", ("", ""), tuple(rows), tuple(below))


def duration(seconds: float) -> str:
    """ "0.4 s", "12 s", "2 min 05 s", "1 h 02 min" """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _from_here(path: str) -> str:
    """The shorter way to write it."""
    here = os.path.relpath(path)
    return path if here.startswith("..") else here


def values_of(rows: Sequence[Metrics], name: str) -> list[float]:
    """Of one metric, in order, where it is a number."""
    return [value for row in rows if (value := row.get(name)) is not None]


def _show(value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(map(_show, value))  # an interval
    if isinstance(value, float):
        return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}" if abs(value) < 0.01 else f"{value:.3f}"
    return str(value)
