"""`report.html`: one run on one page, readable without network, script or server."""

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tandem.track.events import Table
from tandem.track.metrics import read_metrics
from tandem.track.plot import bar_chart, line_chart
from tandem.track.rollouts import read_last_rollouts
from tandem.track.summary import Metrics

NUM_ROLLOUTS = 20
_ROLLOUT_COLUMNS = (
    "row_id",
    "sample",
    "prompt_text",
    "response_text",
    "reward",
    "accuracy",
    "format",
    "advantage",
    "finish_reason",
    "grade_reason",
)

_CHARTS = (  # title, metrics, logarithmic
    ("Reward", ("reward/mean",), False),
    ("Accuracy", ("accuracy/mean", "val/accuracy"), False),
    ("KL to the reference", ("kl/ref",), False),
    ("|Δ log-prob| trainer, generator", ("fidelity/logprob_abs_diff_mean", "fidelity/logprob_abs_diff_max"), True),
    ("Response length in tokens", ("response_length/mean",), False),
    ("Gradient norm", ("grad_norm",), False),
)

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ --ink: #1f2328; --paper: #ffffff; --line: #d8dee4; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e6edf3; --paper: #0d1117; --line: #30363d; }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 2rem auto; max-width: 64rem; padding: 0 1rem; }}
.charts {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; }}
svg {{ width: 100%; height: auto; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; }}
td, th {{ border: 1px solid var(--line); padding: .25rem .6rem; text-align: left; vertical-align: top; white-space: pre-wrap; }}
pre {{ overflow-x: auto; }}
</style>
</head>
<body>
<h1>{title}</h1>
{summary}
<h2>Curves</h2>
<div class="charts">
{charts}
</div>
<h2>Last samples</h2>
<div class="wide">{rollouts}</div>
<details><summary>Settings</summary><pre>{config}</pre></details>
</body>
</html>
"""


def write_report(run_dir: str | Path, summary: Table) -> Path:
    """Write `run_dir`/report.html from the run's metrics, newest samples and config.yaml; what is not there yet is left empty."""
    folder = Path(run_dir)
    config = folder / "config.yaml"
    page = _PAGE.format(
        title=escape(f"Tandem: {folder.resolve().name}"),
        summary=_table(summary.columns, summary.rows),
        charts="\n".join(_charts(read_metrics(folder))),
        rollouts=_rollouts(read_last_rollouts(folder, NUM_ROLLOUTS)),
        config=escape(config.read_text(encoding="utf-8")) if config.is_file() else "",
    )
    path = folder / "report.html"
    unfinished = folder / "report.html.tmp"
    unfinished.write_text(page, encoding="utf-8")
    os.replace(unfinished, path)
    return path


def _charts(rows: Sequence[Metrics]) -> list[str]:
    charts = []
    for title, names, log_y in _CHARTS:
        series = {name: _curve(rows, name) for name in names}
        charts.append(line_chart({name: points for name, points in series.items() if points}, title, log_y=log_y))
    return [*charts, bar_chart(_mean_seconds(rows), "Seconds a step, by phase", "s")]


def _curve(rows: Sequence[Metrics], name: str) -> list[tuple[float, float | None]]:
    """A metric over steps. A step that does not have it is passed over; a null (no finite number) is a gap."""
    return [(row["step"] or 0, row[name]) for row in rows if name in row]


def _mean_seconds(rows: Sequence[Metrics]) -> Mapping[str, float]:
    """The mean of each `time/<phase>_s` over the steps that have it."""
    names = dict.fromkeys(name for row in rows for name in row if name.startswith("time/") and name != "time/step_s")
    seconds = {}
    for name in names:
        values = [value for row in rows if (value := row.get(name)) is not None]
        if values:
            seconds[name.removeprefix("time/").removesuffix("_s")] = sum(values) / len(values)
    return seconds


def _rollouts(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "<p>none yet</p>"
    cells = [tuple("" if (value := row[name]) is None else _show(value) for name in _ROLLOUT_COLUMNS) for row in rows]
    return f"<p>step {rows[0]['step']}</p>" + _table(tuple(name.replace("_", " ") for name in _ROLLOUT_COLUMNS), cells)


def _show(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "<tr>" + "".join(f"<th>{escape(name)}</th>" for name in columns) + "</tr>" if any(columns) else ""
    return "<table>" + head + "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows) + "</table>"
