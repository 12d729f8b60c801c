"""`tandem report` and `tandem serve`: runs on one page."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

Runs = Annotated[list[Path], typer.Argument(metavar="RUN ...", help="folders of runs", show_default=False)]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="else report.html in the run, of several here", show_default=False)]
Open = Annotated[bool, typer.Option("--open", help="show it in the browser")]
Samples = Annotated[int, typer.Option("--samples", min=1, help="most samples on the page")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="0: a free one")]
Host = Annotated[str, typer.Option("--host", help="another address than loopback lets others read")]


def report(runs: Runs, out: Out = None, show: Open = False, num_samples: Samples = 5000) -> None:
    """Write curves, samples and settings of runs as one HTML file.

    Times of phases, plan and warnings too. It needs no network and sends nothing.

    Example: tandem report runs/demo-1 runs/demo-2 --out both.html
    """
    from tandem.report.page import write_report
    from tandem.report.runs import run_folders
    from tandem.report.samples import Budget

    folders = run_folders(runs)
    target = out or (folders[0].path / "report.html" if len(folders) == 1 else Path("report.html"))
    path = write_report(folders, target, Budget(num_samples=num_samples))
    typer.echo(path)
    if show and not webbrowser.open(path.resolve().as_uri()):
        typer.echo("no browser was found here: open the file in one", err=True)


def serve(runs: Runs, port: Port = 8642, host: Host = "127.0.0.1", show: Open = False) -> None:
    """Show the page of `tandem report` live. Ctrl-C ends it.

    Example: tandem serve runs/demo-1 --port 0
    """
    from tandem.report.serve import LiveServer

    with LiveServer(runs, host, port) as server:
        typer.echo(server.address)
        if show:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("ended")
