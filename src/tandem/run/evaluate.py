"""Held-out accuracy of a model as it stands in its folder: `tandem eval`."""

import json
import math
from typing import Any

import numpy as np

from tandem.errors import UserError
from tandem.run import loop
from tandem.run.run import Run


def evaluate(run: Run) -> dict[str, Any]:
    """Sample every held-out row `rollout.val_n` times; write eval.json and rollouts/step_000000.parquet.

    Returns:
        accuracy over samples, its 95% interval (normal approximation over rows; None for a single row), and accuracy by source.

    Raises:
        UserError: there are no held-out rows.
    """
    if not run.val_prompts:
        raise UserError("nothing to evaluate on", "data.val_files is empty", "give data.val_files=FILE.parquet")
    run.version = 0  # as the generators read it from the folder
    with run.track.phase("evaluation"):
        samples = loop.sample_held_out(run)
    run.record(0, samples)
    per_row: dict[str, list[float]] = {}
    by_source: dict[str, list[float]] = {}
    for sample in samples:
        per_row.setdefault(sample.prompt.row.id, []).append(sample.accuracy)
        by_source.setdefault(sample.prompt.row.data_source, []).append(sample.accuracy)
    means = np.array([np.mean(values) for values in per_row.values()])
    half = 1.96 * float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else None
    result = {
        "model": run.model_path,
        "num_rows": len(means),
        "num_samples": len(samples),
        "accuracy": float(means.mean()),
        "accuracy_interval": None if half is None else [float(means.mean()) - half, float(means.mean()) + half],
        **{f"accuracy {source}": float(np.mean(values)) for source, values in sorted(by_source.items())},
    }
    (run.run_dir / "eval.json").write_text(json.dumps(result, indent=1))
    return result
