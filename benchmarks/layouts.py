"""Every layout against one process: log-probs, losses, gradient norms and seconds, on the tiny model with vision and packed batches.

    python benchmarks/layouts.py [--only NAME ...] [--quick] [--guide] [--json FILE]

`--quick` runs those of at most two ranks. `--guide` adds 64 ranks in the 122B layout of the Ascend guide (TP2 PP4 EP16): minutes and about
12 GB on two cores.
Exit code 1 when a layout is off by more than 1e-4 in a log-prob, 1e-5 in a loss or 1e-3 in a gradient norm (relative).
"""

import argparse
import json
import platform
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.engine.layouts import GUIDE_122B, LAYOUTS, Case, Measured, measure
from tests.examples import make_sequences, write_tiny_model

LIMITS = {"max_abs_logprob_diff": 1e-4, "loss_rel_diff": 1e-5, "grad_norm_rel_diff": 1e-3}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=sorted(LAYOUTS))
    parser.add_argument("--quick", action="store_true", help="layouts of at most two ranks")
    parser.add_argument("--guide", action="store_true", help="64 ranks too")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    layouts = {name: LAYOUTS[name] for name in arguments.only or LAYOUTS if name != "single"}
    if arguments.quick:
        layouts = {name: layout for name, layout in layouts.items() if layout[0] <= 2}
    if arguments.guide:
        layouts["guide_122b"] = GUIDE_122B
    rows: list[dict] = []
    table = Table("layout", "ranks", "max |Δ log-prob|", "loss, relative", "grad norm, relative", "seconds")
    with tempfile.TemporaryDirectory(prefix="tandem-layouts-") as folder:
        references: dict[str, tuple[Path, list, Measured]] = {}
        for name, layout in layouts.items():
            size = "test-16-experts" if name == "guide_122b" else "test"
            if size not in references:
                model = write_tiny_model(Path(folder) / size, size)
                sequences = make_sequences(model)
                references[size] = (model, sequences, measure([Case(LAYOUTS["single"], model, sequences)])[0])
            model, sequences, single = references[size]
            began = time.monotonic()
            [measured] = measure([Case(layout, model, sequences)], timeout_s=3000)
            seconds = time.monotonic() - began
            errors = {
                "max_abs_logprob_diff": float(max(np.abs(ours - theirs).max() for ours, theirs in zip(measured.logprobs, single.logprobs))),
                "loss_rel_diff": float(np.abs(measured.losses / single.losses - 1).max()),
                "grad_norm_rel_diff": float(np.abs(measured.grad_norms / single.grad_norms - 1).max()),
            }
            rows.append({"name": name, "num_processes": layout[0], **errors, "seconds": round(seconds, 1)})
            table.add_row(name, str(layout[0]), *(f"{error:.1e}" for error in errors.values()), f"{seconds:.0f}")
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": platform.machine(), "limits": LIMITS, "layouts": rows}, indent=1))
    return int(any(row[name] > limit for row in rows for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
