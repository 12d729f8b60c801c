from tandem.cli.options import DryRun, Json, LogJson, Overrides, Quiet, Recipe, Verbose
from tandem.cli.start import Shown, start


def evaluate(
    recipe: Recipe, overrides: Overrides = None, dry_run: DryRun = False, quiet: Quiet = False, verbose: Verbose = False,
    log_json: LogJson = False, as_json: Json = False,
) -> None:  # fmt: skip
    """Answer and grade the held-out rows; train nothing.

    Example: tandem eval demo model.path=runs/demo/export
    """
    start("eval", recipe, overrides or (), Shown(quiet, verbose, log_json, as_json), dry_run=dry_run)
