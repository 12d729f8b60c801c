from tandem.cli.options import DryRun, Json, LogJson, Overrides, Quiet, Recipe, Verbose
from tandem.cli.start import Shown, start


def train(
    recipe: Recipe, overrides: Overrides = None, dry_run: DryRun = False, quiet: Quiet = False, verbose: Verbose = False,
    log_json: LogJson = False, as_json: Json = False,
) -> None:  # fmt: skip
    """Train by GRPO as the recipe says.

    Example: tandem train demo trainer.total_steps=2 optimizer.lr=1e-4
    """
    start("train", recipe, overrides or (), Shown(quiet, verbose, log_json, as_json), dry_run=dry_run)
