"""`metrics.jsonl`: one JSON object a step."""

import json
import logging
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tandem.errors import UserError

FILE_NAME = "metrics.jsonl"
_NAME = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)*$")
_log = logging.getLogger(__name__)


class MetricsLog:
    """Appends the metrics of each step to `run_dir`/metrics.jsonl, readable by others as soon as `append` returns."""

    def __init__(self, run_dir: str | Path):
        self.path = Path(run_dir) / FILE_NAME
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.num_nonfinite = 0  # values written as null so far

    def append(self, metrics: Mapping[str, Any]) -> dict[str, float | None]:
        """Write one line and return what was written.

        A NaN or an infinity becomes null; `nonfinite` then says how many there are in this line. NumPy and 0-d torch numbers are taken.
        """
        row: dict[str, float | None] = {}
        for name, value in metrics.items():
            assert _NAME.match(name), f"metric name {name!r}"
            number = value.item() if hasattr(value, "item") else value
            assert number is None or isinstance(number, int | float), f"metric {name} is a {type(value).__name__}"
            row[name] = number if number is None or math.isfinite(number) else None
        nonfinite = sorted(name for name, value in metrics.items() if value is not None and row[name] is None)
        if nonfinite:
            _log.warning("step %s: not a finite number: %s", row.get("step"), ", ".join(nonfinite))
            self.num_nonfinite += len(nonfinite)
            row["nonfinite"] = len(nonfinite)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
        return row

    def cut_after(self, step: int) -> list[dict[str, float | None]]:
        """Drop the lines of later steps, and one that was cut off in the middle; returns those that stay."""
        rows = [row for row in read_metrics(self.path.parent) if (row.get("step") or 0) <= step]
        if self.path.is_file():
            beside = self.path.with_suffix(".tmp")
            beside.write_text("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows), encoding="utf-8")
            os.replace(beside, self.path)
        return rows


def read_metrics(run_dir: str | Path) -> list[dict[str, float | None]]:
    """The lines of a run's metrics.jsonl in order; [] when there are none yet. A last line without its end is not one."""
    path = Path(run_dir) / FILE_NAME
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise UserError(f"line {number} of {path} is not JSON", str(error), "restore the file, or remove that line") from error
    return rows
