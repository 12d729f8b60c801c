"""Held-out accuracy of a model as it stands in its folder: `tandem eval`."""

import json
from typing import Any

import numpy as np

from tandem.errors import UserError
from tandem.run import loop
from tandem.run.estimate import by_source, rows_of
from tandem.run.run import Run
from tandem.track.events import Table

ROWS_FILE = "eval_rows.jsonl"


def evaluate(run: Run) -> dict[str, Any]:
    """Sample every held-out row `rollout.val_n` times; write eval.json, eval_rows.jsonl and rollouts/step_000000.parquet.

    Returns:
        What eval.json holds: `accuracy` over samples and its 95% interval, and for all rows and each source the estimates of
        `tandem.algorithms.estimates`, each {value, low, high}. Intervals are by bootstrap over rows; None for a single row.

    Raises:
        UserError: there are no held-out rows.
    """
    if not run.val_prompts:
        raise UserError("nothing to evaluate on", "data.val_files is empty", "give data.val_files=FILE.parquet")
    run.version = 0  # as the generators read it from the folder
    with run.track.phase("evaluation"):
        samples = loop.sample_held_out(run)
    run.record(0, samples)
    with (run.run_dir / ROWS_FILE).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows_of(samples))
    found = {source: {name: vars(one) for name, one in of.items()} for source, of in by_source(samples).items()}
    accuracy = next(iter(found["all"].values()))  # avg_at_n
    result = {
        "model": run.model_path,
        "num_rows": len({sample.prompt.row.id for sample in samples}),
        "num_samples": len(samples),
        "temperature": run.config.rollout.val_temperature,
        "n": run.config.rollout.val_n,
        "accuracy": accuracy["value"],
        "accuracy_interval": None if accuracy["low"] is None else [accuracy["low"], accuracy["high"]],
        "format": float(np.mean([sample.format for sample in samples])),
        "reward": float(np.mean([sample.reward for sample in samples])),
        "sources": found,
    }
    (run.run_dir / "eval.json").write_text(json.dumps(result, indent=1))
    run.track.emit(table(result))
    return result


def table(result: dict[str, Any]) -> Table:
    """A line for each source: the estimates and their intervals."""
    names = list(result["sources"]["all"])
    rows = [(source, *(_shown(of[name]) if name in of else "" for name in names)) for source, of in result["sources"].items()]
    n, temperature = result["n"], result["temperature"]
    return Table(f"Held-out rows, n = {n}, temperature {temperature:g}, 95% intervals", ("source", *map(_column, names)), tuple(rows))


def _shown(estimate: dict[str, float | None]) -> str:
    value, low, high = estimate["value"], estimate["low"], estimate["high"]
    return f"{value:.3f}" if low is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _column(name: str) -> str:
    return name.replace("_at_", "@")
