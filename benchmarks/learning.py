"""Does it learn? Real runs of the demo, as a table checked against the baseline beside this file.

    python benchmarks/learning.py [key=value ...] [--seeds 0 1 2] [--json FILE] [--svg FILE] [--quick]
    python benchmarks/learning.py [key=value ...] --algorithms [NAME ...] [--steps 40] [--seeds 0 1 2] [--json FILE] [--svg FILE] [--quick]

Without `--algorithms` the demo as it is, GRPO, with several seeds; `--quick` is one seed. With it each algorithm (no name: all) from the
same warm-started model; looked at are the reward of the first and last 5 steps, whose rows differ (a step's mean moves by 0.06 from one to
the next whatever is learned), and that of the same 300 held-out rows, 4 samples each, before the first step and after the last. Exit code
1 when a seed of the demo, or the mean of an algorithm's seeds, misses the baseline. `--go-on` keeps the runs that the JSON file has.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from tandem.track.metrics import read_metrics
from tandem.track.plot import line_chart

BASELINE = Path(__file__).with_name("learning_baseline.json")
PAIRS = {
    "reward": ("reward_first5", "reward_last5"),
    "val_reward": ("val_reward_before", "val_reward_after"),
    "val_accuracy": ("val_accuracy_before", "val_accuracy_after"),
}

# Two optimizer steps a batch, or no ratio would ever differ from 1 and all clips would be the same.
COMMON = ("batch.mini_batch_size=16", "rollout.val_n=4")
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "grpo": (),
    "dapo": (
        *("algorithm.clip_high=0.28", "algorithm.dynamic_sampling=1", "algorithm.kl.coef=0"),
        *("algorithm.aggregation=token_mean", "reward.overlong_buffer=4"),
    ),
    # The paper's clip of 3e-4 is for responses of thousands of tokens: the mean of ten moves much further.
    "gspo": ("algorithm.loss=gspo", "algorithm.clip_low=0.03", "algorithm.clip_high=0.04", "algorithm.aggregation=sequence_mean"),
    "cispo": ("algorithm.loss=cispo", "algorithm.clip_low=1"),
    "rloo": ("algorithm.advantage=rloo",),
    "reinforce++": ("algorithm.advantage=reinforce_plus_plus", "algorithm.kl.where=reward", "algorithm.kl.kind=k1"),
    "ppo": ("algorithm.advantage=gae", "critic.optimizer.lr=1e-3", "critic.warmup_steps=1"),
}


def tandem(*arguments: str) -> dict[str, Any]:
    """The summary that a command of ours prints."""
    done = subprocess.run([sys.executable, "-m", "tandem", *arguments, "--json"], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def one_run(name: str, seed: int, folder: Path, overrides: Iterable[str]) -> dict[str, Any]:
    """A run of the demo: its figures, and its reward of each step."""
    summary = tandem("train", "demo", f"run_dir={folder}", f"trainer.seed={seed}", *overrides)
    rows = read_metrics(folder)
    validated = [row["val/reward"] for row in rows if "val/reward" in row]
    summary |= {"val_reward_before": validated[0], "val_reward_after": validated[-1]}
    rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
    return {"algorithm": name, "seed": seed, **{figure: summary[figure] for pair in PAIRS.values() for figure in pair}, "rewards": rewards}


def with_seeds(seeds: list[int], folder: Path, overrides: list[str]) -> Iterable[dict[str, Any]]:
    for seed in seeds:
        yield one_run("grpo", seed, folder / str(seed), overrides)


def with_algorithms(names: list[str], steps: int, seeds: list[int], folder: Path, overrides: list[str]) -> Iterable[dict[str, Any]]:
    """Each from the model that supervised steps have made once for all of them."""
    for seed in seeds if names else ():
        start = folder / f"start-{seed}"
        tandem("sft", "demo", f"run_dir={start}", f"trainer.seed={seed}")
        settings = [f"trainer.total_steps={steps}", "trainer.test_freq=0", f"model.path={start / 'export'}", "warm_start.max_steps=0"]
        for name in names:
            yield one_run(name, seed, folder / f"{name}-{seed}", [*settings, *COMMON, *ALGORITHMS[name], *overrides])


def rise(run: dict[str, Any], name: str) -> float:
    before, after = PAIRS[name]
    return run[after] - run[before]


def table_of(runs: list[dict[str, Any]]) -> Table:
    table = Table("algorithm", "seed")
    for name in ("reward", "held-out reward", "held-out accuracy"):
        table.add_column(f"{name} {'first 5' if name == 'reward' else 'before'}")
        table.add_column("last 5" if name == "reward" else "after")
        table.add_column("rise")
    for run in runs:
        cells = [cell for name, (before, after) in PAIRS.items() for cell in (run[before], run[after], rise(run, name))]
        table.add_row(run["algorithm"], str(run["seed"]), *(f"{cell:.3f}" for cell in cells))
    return table


def too_little(groups: dict[str, list[dict[str, Any]]], baseline: dict[str, float]) -> list[str]:
    """Of each group of runs, the mean rises that are below the baseline's."""
    means = {(name, figure): fmean(rise(run, figure) for run in runs) for name, runs in groups.items() for figure in baseline}
    return [
        f"{name}: {figure} rose by {mean:.3f}, at least {baseline[figure]} is asked"
        for (name, figure), mean in means.items()
        if mean < baseline[figure]
    ]


def smooth(rewards: list[float], width: int = 5) -> list[tuple[float, float]]:
    """(step, mean of the last `width` steps)."""
    means = [sum(rewards[max(0, i + 1 - width) : i + 1]) / min(width, i + 1) for i in range(len(rewards))]
    return list(enumerate(means, start=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--algorithms", nargs="*", choices=list(ALGORITHMS), help="each by itself; no name: all")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path, help="the reward curves")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--go-on", action="store_true", help="make only the runs that the JSON file does not have")
    arguments, overrides = parser.parse_known_args()
    baseline = json.loads(BASELINE.read_text())
    compares = arguments.algorithms is not None
    seeds = (arguments.seeds or [0, 1, 2])[: 1 if arguments.quick else None]
    runs: list[dict[str, Any]] = json.loads(arguments.json.read_text())["runs"] if arguments.go_on and arguments.json.exists() else []
    known = {(run["algorithm"], run["seed"]) for run in runs}
    with tempfile.TemporaryDirectory(prefix="tandem-learning-") as folder:
        if compares:
            names = [name for name in arguments.algorithms or ALGORITHMS if any((name, seed) not in known for seed in seeds)]
            made = with_algorithms(names, arguments.steps, seeds, Path(folder), overrides)
        else:
            made = with_seeds([seed for seed in seeds if ("grpo", seed) not in known], Path(folder), overrides)
        for run in made:
            runs.append(run)
            if arguments.json:  # after each: they take minutes
                arguments.json.write_text(json.dumps({"runs": runs}, indent=1))
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(run["algorithm"] if compares else f"seed {run['seed']}", []).append(run)
    missed = too_little(groups, baseline["algorithms"] if compares else baseline["demo"])
    console = Console()
    console.width = max(console.width, 120)  # eleven columns
    console.print(table_of(runs))
    for line in missed:
        console.print(line)
    if arguments.svg:
        curves = {name: [fmean(step) for step in zip(*(run["rewards"] for run in some))] for name, some in groups.items()}
        title = "Mean reward of the last 5 steps" if compares else "Mean reward of each step"
        points = {name: smooth(rewards) if compares else list(enumerate(rewards, start=1)) for name, rewards in curves.items()}
        arguments.svg.write_text(line_chart(points, title))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
