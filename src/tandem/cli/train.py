from tandem.cli.options import DryRun, Json, Overrides, Quiet, Recipe
from tandem.cli.start import start


def train(recipe: Recipe, overrides: Overrides = None, dry_run: DryRun = False, quiet: Quiet = False, as_json: Json = False) -> None:
    """Train by GRPO as the recipe says.

    Example: tandem train demo trainer.total_steps=2 optimizer.lr=1e-4
    """
    start("train", recipe, overrides or (), dry_run=dry_run, quiet=quiet, as_json=as_json)
