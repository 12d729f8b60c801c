"""The groups of samples that someone asks for, by step, row and order."""

from collections.abc import Callable
from statistics import fmean
from typing import Any

from tandem.errors import UserError
from tandem.report.runs import RunFolder
from tandem.report.samples import Budget, rollouts_of

EVERYTHING = Budget(num_samples=1 << 40, text_bytes=1 << 60, image_bytes=0)


def _reward(group: dict[str, Any]) -> float:
    return fmean(sample["reward"] or 0.0 for sample in group["samples"])


KEYS: dict[str, Callable[[dict[str, Any]], float]] = {
    "step": lambda group: -group["step"],
    "fidelity": lambda group: -max((sample.get("fidelity", -1.0) for sample in group["samples"]), default=-1.0),
    "highest": lambda group: -_reward(group),
    "lowest": _reward,
}


def asked_groups(run: RunFolder, step: int | None, row: str, order: str, count: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """At most `count` groups, and the rows they are of.

    Args:
        step: None: the newest, or with `row` all of them.
        row: its id, or its number in its file; empty: any.

    Raises:
        UserError: there are no such samples.
    """
    if order not in KEYS:
        raise UserError(f"there is no order {order}", f"there are {', '.join(KEYS)}", "choose one of them")
    files = run.rollouts
    if not files:
        raise UserError(f"{run.path} has no rollouts", "no step was finished yet", "wait for its first step")
    if step is not None and step not in files:
        raise UserError(f"{run.path} has no rollouts of step {step}", f"it has those of {min(files)} to {max(files)}", "name one of them")
    steps = [step] if step is not None else list(files) if row else [max(files)]
    found = rollouts_of(run, EVERYTHING, only=steps)
    groups = [group for group in found["groups"] if not row or group["row"] == row or group["row"].endswith(f":{row}")]
    if not groups:
        raise UserError(f"no row {row} among the samples", f"looked at {len(steps)} steps", "see `tandem inspect rollouts RUN` for ids")
    return sorted(groups, key=KEYS[order])[:count], found["rows"]
