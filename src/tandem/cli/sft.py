from tandem.cli.options import DryRun, Json, Overrides, Quiet, Recipe
from tandem.cli.start import start


def sft(recipe: Recipe, overrides: Overrides = None, dry_run: DryRun = False, quiet: Quiet = False, as_json: Json = False) -> None:
    """Train on reference answers, as warm_start says (supervised).

    Example: tandem sft demo warm_start.max_steps=100
    """
    start("sft", recipe, overrides or (), dry_run=dry_run, quiet=quiet, as_json=as_json)
