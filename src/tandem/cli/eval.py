from tandem.cli.options import DryRun, Json, Overrides, Quiet, Recipe
from tandem.cli.start import start


def evaluate(recipe: Recipe, overrides: Overrides = None, dry_run: DryRun = False, quiet: Quiet = False, as_json: Json = False) -> None:
    """Answer and grade the held-out rows; train nothing.

    Example: tandem eval demo model.path=runs/demo/export
    """
    start("eval", recipe, overrides or (), dry_run=dry_run, quiet=quiet, as_json=as_json)
