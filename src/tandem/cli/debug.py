"""`tandem debug`: rollouts alone, and training alone on rollouts that were recorded."""

from pathlib import Path
from typing import Annotated

import typer

from tandem.cli.options import DryRun, Json, LogJson, Overrides, Quiet, Recipe, Verbose
from tandem.cli.start import Shown, start
from tandem.errors import UserError

debug = typer.Typer(
    no_args_is_help=True, help="Run half of a step at a time.\n\nExample: tandem debug rollout-only demo trainer.total_steps=2"
)
Recorded = Annotated[Path, typer.Argument(metavar="RUN", help="folder of the run that recorded them", show_default=False)]


@debug.command("rollout-only")
def rollout_only(
    recipe: Recipe, overrides: Overrides = None, dry_run: DryRun = False, quiet: Quiet = False, verbose: Verbose = False,
    log_json: LogJson = False, as_json: Json = False,
) -> None:  # fmt: skip
    """Sample and grade the prompts of some steps; train nothing.

    The model is model.path as it stands, without a warm start.

    Example: tandem debug rollout-only demo trainer.total_steps=2
    """
    start("rollout-only", recipe, overrides or (), Shown(quiet, verbose, log_json, as_json), dry_run=dry_run)


@debug.command("train-only")
def train_only(
    run: Recorded, overrides: Overrides = None, dry_run: DryRun = False, quiet: Quiet = False, verbose: Verbose = False,
    log_json: LogJson = False, as_json: Json = False,
) -> None:  # fmt: skip
    """Train again on the rollouts that a run recorded; sample nothing.

    Settings are the run's own; key=value changes them. Rewards are graded anew.

    Example: tandem debug train-only runs/demo-1 optimizer.lr=1e-4
    """
    config = run.expanduser() / "config.yaml"
    if not config.is_file():
        raise UserError(f"no run at {run}", "it has no config.yaml", "give the folder of a run: runs/<recipe>-<time>")
    fixed = [f"record.replay={run.expanduser()}", "resume=never"]
    mine = [] if any(text.startswith("run_dir=") for text in overrides or ()) else [f"run_dir={_beside(run)}"]
    start("train-only", str(config), [*fixed, *mine, *(overrides or ())], Shown(quiet, verbose, log_json, as_json), dry_run=dry_run)


def _beside(run: Path) -> Path:
    """The first of RUN-train-only, RUN-train-only-2, ... that is free."""
    folder = run.expanduser().resolve()
    names = [f"{folder.name}-train-only", *(f"{folder.name}-train-only-{number}" for number in range(2, 1000))]
    return next(path for name in names if not (path := folder.with_name(name)).exists())
