"""Does it learn? The demo with several seeds, each a real run; prints a table and checks it against the baseline beside this file.

    python benchmarks/learning.py [--seeds 0 1 2] [--json FILE] [--svg FILE] [--quick] [key=value ...]

`--quick` is one seed. Exit code 1 when a run misses the baseline.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tandem.track.metrics import read_metrics
from tandem.track.plot import line_chart

BASELINE = Path(__file__).with_name("learning_baseline.json")


def run_seed(seed: int, folder: Path, overrides: list[str]) -> tuple[dict, list[float]]:
    """The summary of one run and its reward of each step."""
    command = [sys.executable, "-m", "tandem", "demo", f"run_dir={folder}", f"trainer.seed={seed}", "--json", *overrides]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rewards = [row["reward/mean"] for row in read_metrics(folder) if "reward/mean" in row]
    return json.loads(done.stdout), rewards


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path, help="the reward curves")
    parser.add_argument("--quick", action="store_true")
    arguments, overrides = parser.parse_known_args()
    baseline = json.loads(BASELINE.read_text())
    runs: list[dict] = []
    curves = {}
    with tempfile.TemporaryDirectory(prefix="tandem-learning-") as folder:
        for seed in arguments.seeds[: 1 if arguments.quick else None]:
            summary, rewards = run_seed(seed, Path(folder) / str(seed), overrides)
            names = ("reward_first5", "reward_last5", "val_accuracy_before", "val_accuracy_after")
            runs.append({"algorithm": "grpo", "seed": seed, **{name: summary[name] for name in names}})
            curves[f"seed {seed}"] = list(enumerate(rewards, start=1))
    table = Table("seed", "reward first 5", "reward last 5", "rise", "held-out before", "held-out after", "rise")
    missed = 0
    for run in runs:
        reward_rise = run["reward_last5"] - run["reward_first5"]
        accuracy_rise = run["val_accuracy_after"] - run["val_accuracy_before"]
        missed += reward_rise < baseline["min_reward_rise"] or accuracy_rise < baseline["min_accuracy_rise"]
        figures = (
            run["reward_first5"],
            run["reward_last5"],
            reward_rise,
            run["val_accuracy_before"],
            run["val_accuracy_after"],
            accuracy_rise,
        )
        table.add_row(str(run["seed"]), *(f"{figure:.3f}" for figure in figures))
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"runs": runs}, indent=1))
    if arguments.svg:
        arguments.svg.write_text(line_chart(curves, "Mean reward of each step"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
