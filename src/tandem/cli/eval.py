from typing import Annotated

import typer

from tandem.cli.options import DryRun, Json, LogJson, Overrides, Quiet, Recipe, Verbose
from tandem.cli.start import Shown, start


def evaluate(
    recipe: Recipe,
    overrides: Overrides = None,
    n: Annotated[
        int | None, typer.Option("-n", "--n", help="samples a row, for pass@k and maj@n: rollout.val_n", show_default=False)
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="0 is greedy: rollout.val_temperature", show_default=False)
    ] = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    log_json: LogJson = False,
    as_json: Json = False,
) -> None:
    """Answer and grade the held-out rows; train nothing.

    Example: tandem eval demo model.path=runs/demo/export --n 8
    """
    given = {"rollout.val_n": n, "rollout.val_temperature": temperature}
    options = [f"{key}={value}" for key, value in given.items() if value is not None]
    start("eval", recipe, [*(overrides or ()), *options], Shown(quiet, verbose, log_json, as_json), dry_run=dry_run)
