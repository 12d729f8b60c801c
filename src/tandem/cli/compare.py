import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tandem.cli.options import Json

Run = Annotated[Path, typer.Argument(metavar="RUN", show_default=False)]


def compare(
    first: Run,
    second: Run,
    every: Annotated[bool, typer.Option("--all", help="every metric, not the main ones only")] = False,
    as_json: Json = False,
) -> None:
    """Show two runs' settings that differ, and their metrics.

    Example: tandem compare runs/demo-1 runs/demo-2
    """
    from tandem.report.runs import run_folders
    from tandem.report.terminal import comparison, comparison_json

    runs = run_folders([first, second])
    if as_json:
        typer.echo(json.dumps(comparison_json(*runs), indent=2))
    else:
        Console(highlight=False).print(comparison(*runs, every_metric=every))
