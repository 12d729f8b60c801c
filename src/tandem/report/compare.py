"""Several runs side by side: settings that differ, and figures of their metrics."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from tandem.report.runs import RunFolder

ABSENT = "not set"
OF_EACH_RUN = ("run_dir",)  # differ in any case
LAST = 5  # steps at the end whose mean is shown


class Figures(NamedTuple):
    """Of one metric in one run; None where the run does not have it."""

    first: float | None
    last: float | None  # mean over the last `LAST` values
    least: float | None
    most: float | None


def setting_differences(runs: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """{"key", "values": of each run} of every setting that is not the same in all, in the first run's order."""
    keys = dict.fromkeys(key for run in runs for key in run.settings if key not in OF_EACH_RUN)
    values = {key: [_shown(run.settings, key) for run in runs] for key in keys}
    return [{"key": key, "values": of_key} for key, of_key in values.items() if len(set(of_key)) > 1]


def metric_figures(run: RunFolder) -> dict[str, Figures]:
    values: dict[str, list[float]] = {}
    for row in run.metrics:
        for name, value in row.items():
            if name != "step":
                values.setdefault(name, [])
                values[name] += [] if value is None else [value]
    return {name: Figures(v[0], fmean(v[-LAST:]), min(v), max(v)) if v else Figures(*[None] * 4) for name, v in values.items()}


def _shown(settings: dict[str, Any], key: str) -> str:
    return str(settings[key]) if key in settings else ABSENT
