"""Arguments and options that several commands share."""

from typing import Annotated

import typer


def recipes(incomplete: str) -> list[str]:
    """For the shell: built-in recipes that begin so."""
    from tandem.config.recipe_file import builtin_recipes

    return [name for name in builtin_recipes() if name.startswith(incomplete)]


def settings(incomplete: str) -> list[str]:
    """For the shell: settings that begin so."""
    from tandem.config.keys import SETTINGS

    return [f"{key}=" for key in SETTINGS if key.startswith(incomplete)]


Recipe = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="a built-in recipe (demo, ...) or a YAML file", show_default=False, autocompletion=recipes),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="settings that replace the recipe's", show_default=False, autocompletion=settings),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="all metrics of a step, and every phase each time")]
LogJson = Annotated[bool, typer.Option("--log-json", help="progress as JSON, one event a line")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="print the resolved settings and stop")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress, only the summary")]
Json = Annotated[bool, typer.Option("--json", help="the result as JSON on standard output; progress goes to standard error")]
