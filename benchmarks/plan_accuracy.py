"""`tandem plan` against the bytes of tensors that real updates have on CPU, in several layouts, for a tiny and a 100M-parameter model.

    python benchmarks/plan_accuracy.py [--json FILE] [--check] [--quick]

Weights, gradients and optimizer: bytes of their storages. Activations: bytes of all other storages that are alive when a forward pass ends,
at most. Peak: bytes of all storages alive at one time, at most. The table shows the rank that is off most.
`--quick` leaves out the large model. `--check` exits 1 when one of the first three is not exact or the others are off by more than 10 %.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.examples import make_sequences, write_tiny_model
from tests.plan.accuracy import CASES, EXACT, WITHIN, compare, off, wrong

MODELS = {"test": 200, "100M": 400}  # size of the model -> tokens of a micro-batch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="exit 1 when a prediction is off")
    parser.add_argument("--quick", action="store_true", help="the tiny model only")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    console = Console()
    for size in ["test"] if arguments.quick else MODELS:
        with tempfile.TemporaryDirectory(prefix="tandem-plan-") as folder:
            model = write_tiny_model(Path(folder) / size, size)
            found = compare(model, make_sequences(model), CASES, max_tokens=MODELS[size], timeout_s=3600)
        console.print(_table(size, found))
        rows += [row | {"layout": f"{size} {row['layout']}"} for row in found]
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1))
    return int(arguments.check and bool(wrong(rows)))


def _table(size: str, rows: list[dict[str, Any]]) -> Table:
    kinds = (*EXACT, *WITHIN)
    table = Table("layout", *(f"{what}: plan / measured MB" for what in kinds), title=f"model {size}")
    for layout in dict.fromkeys(row["layout"] for row in rows):
        cells = []
        for what in kinds:
            worst = max((row for row in rows if (row["layout"], row["what"]) == (layout, what)), key=off)
            cells.append(f"{worst['predicted_bytes'] / 1e6:.2f} / {worst['measured_bytes'] / 1e6:.2f} ({off(worst):.1%})")
        table.add_row(layout, *cells)
    return table


if __name__ == "__main__":
    sys.exit(main())
