"""Arguments and options that several commands share."""

from typing import Annotated

import typer

Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help="a built-in recipe (demo, ...) or a YAML file", show_default=False)]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="settings that replace the recipe's", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="print the resolved settings and stop")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress, only the summary")]
Json = Annotated[bool, typer.Option("--json", help="the result as JSON on standard output; progress goes to standard error")]
