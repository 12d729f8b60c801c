"""Runs and samples as text for a terminal. What the model wrote is shown, its control characters never reach the terminal."""

import re
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tandem.report.compare import Figures, metric_figures, setting_differences
from tandem.report.runs import RunFolder

MAIN_METRICS = (
    *("reward/mean", "accuracy/mean", "format/mean", "val/accuracy", "kl/ref", "entropy", "clip_share", "grad_norm", "loss/policy"),
    *("response_length/mean", "response_length/clipped_share", "fidelity/logprob_abs_diff_mean", "fidelity/logprob_abs_diff_max"),
    *("mfu", "tokens_per_s", "time/step_s", "time/rollout_s", "time/update_s", "memory/device_peak_bytes"),
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # escape sequences begin with one; the last reorder text


def plain(text: str) -> Text:
    """Text as it is, its control characters written out. A carriage return is one, too."""
    return Text(_CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def comparison(first: RunFolder, second: RunFolder, every_metric: bool = False) -> RenderableType:
    """Settings that differ, then metrics side by side."""
    return Group(_settings(first, second), _metrics(first, second, every_metric))


def comparison_json(first: RunFolder, second: RunFolder) -> dict[str, Any]:
    """All of it: settings that differ, and each metric's figures in both runs."""
    figures = [metric_figures(run) for run in (first, second)]
    return {
        "runs": [str(run.path) for run in (first, second)],
        "settings": {row["key"]: row["values"] for row in setting_differences([first, second])},
        "metrics": {name: [of._asdict() if (of := each.get(name)) else None for each in figures] for name in figures[0] | figures[1]},
    }


def _settings(first: RunFolder, second: RunFolder) -> RenderableType:
    differences = setting_differences([first, second])
    if not differences:
        return Text("The runs have the same settings.\n")
    table = Table("setting", title="Settings that differ", title_justify="left", box=None)
    for run in (first, second):
        table.add_column(plain(run.name))
    for row in differences:
        table.add_row(plain(row["key"]), *(plain(value) for value in row["values"]))
    return table


def _metrics(first: RunFolder, second: RunFolder, every: bool) -> RenderableType:
    ours, theirs = metric_figures(first), metric_figures(second)
    names = [*(ours | theirs)] if every else [name for name in MAIN_METRICS if name in ours or name in theirs]
    title = f"Metrics: at first, and the mean of the last 5 ({_steps(first)} and {_steps(second)} steps)"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("metric", overflow="fold")
    for column in (plain(first.name), "last", plain(second.name), "last", "last by"):
        table.add_column(column, justify="right")
    for name in names:
        a, b = ours.get(name, _NONE), theirs.get(name, _NONE)
        by = f"{b.last - a.last:+.3g}" if a.last is not None and b.last is not None else ""
        table.add_row(plain(name), _number(a.first), _number(a.last), _number(b.first), _number(b.last), by)
    return table


_NONE = Figures(None, None, None, None)


def _steps(run: RunFolder) -> int:
    return sum("reward/mean" in row for row in run.metrics)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def groups_text(groups: Sequence[dict[str, Any]], rows: dict[str, dict[str, Any]]) -> RenderableType:
    """Groups of samples (as `rollouts_of` gives them), one below the other."""
    return Group(*(part for group in groups for part in _group(group, rows[group["row"]])))


def _group(group: dict[str, Any], row: dict[str, Any]) -> list[RenderableType]:
    reward = fmean(sample["reward"] or 0.0 for sample in group["samples"])
    head = plain(f"step {group['step']}, {group['row']}, from {row['source']}, mean reward {reward:.3g}")
    head.stylize("bold")
    pictures = f"{len(row['images'])} picture{'s' if len(row['images']) > 1 else ''}; " if row["images"] else ""
    asked = Text.assemble(plain(row["prompt"] or ""), "\n", pictures, "reference answer: ", plain(str(row["truth"])))
    return [head, asked, *(part for sample in group["samples"] for part in _sample(sample)), Text()]


def _sample(sample: dict[str, Any]) -> list[Text]:
    parts = ", ".join(f"{name} {value:.3g}" for name, value in sample["parts"].items())
    fidelity = f", |Δ log-prob| {sample['fidelity']:.1e}" if "fidelity" in sample else ""
    facts = f"reward {_number(sample['reward'])} ({parts}), advantage {_number(sample['advantage'])}{fidelity}"
    length = f"{sample['length']} tokens, {sample['finish']}, version {sample['version']}, {sample['reason'] or 'no reason'}"
    head = plain(f"  [{sample['number'] + 1}] {facts}, {length}")
    head.stylize("cyan")
    text = plain(sample["text"] or "")
    return [head, Text("\n").join(Text("      ") + line for line in text.split("\n"))]
