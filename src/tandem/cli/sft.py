from tandem.cli.options import DryRun, Json, LogJson, Overrides, Quiet, Recipe, Verbose
from tandem.cli.start import Shown, start


def sft(
    recipe: Recipe, overrides: Overrides = None, dry_run: DryRun = False, quiet: Quiet = False, verbose: Verbose = False,
    log_json: LogJson = False, as_json: Json = False,
) -> None:  # fmt: skip
    """Train on reference answers, as warm_start says (supervised).

    Example: tandem sft demo warm_start.max_steps=100
    """
    start("sft", recipe, overrides or (), Shown(quiet, verbose, log_json, as_json), dry_run=dry_run)
