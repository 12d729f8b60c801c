from pathlib import Path
from typing import Annotated

import typer

data = typer.Typer(no_args_is_help=True, help="Fetch and prepare data.\n\nExample: tandem data geo3k --out ~/data/geo3k")


@data.command("geo3k")
def geo3k(
    out: Annotated[Path, typer.Option(help="folder for the two files", show_default=False)],
    source: Annotated[str, typer.Option(help="hub name, or a folder with a copy")] = "tyzhu/geo3k",
    offline: Annotated[bool, typer.Option("--offline", help="download nothing")] = False,
) -> None:
    """Write Geo3K's train.parquet and test.parquet.

    Example: tandem data geo3k --out ~/data/geo3k --source hiyouga/geometry3k
    """
    from tandem.data.geo3k import write_geo3k

    for path, num_rows in write_geo3k(out.expanduser(), source, offline=offline).items():
        typer.echo(f"{path}: {num_rows} rows")
