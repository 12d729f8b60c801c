"""The command `tandem`. Importing this module loads nothing heavy."""

import sys
from typing import Annotated

import typer

from tandem.cli import edge
from tandem.cli.cluster import cluster
from tandem.cli.compare import compare
from tandem.cli.data import data
from tandem.cli.debug import debug
from tandem.cli.demo import demo
from tandem.cli.doctor import doctor
from tandem.cli.eval import evaluate
from tandem.cli.export import export
from tandem.cli.inspect import inspect
from tandem.cli.plan import plan
from tandem.cli.profile import profile
from tandem.cli.rehearse import rehearse
from tandem.cli.report import report, serve
from tandem.cli.sft import sft
from tandem.cli.train import train
from tandem.doctor.versions import versions

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


def _print_versions(wanted: bool) -> None:
    if wanted:
        typer.echo("\n".join(f"{name} {version}" for name, version in versions().items()))
        raise typer.Exit


@app.callback()
def tandem(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_versions, is_eager=True, help="versions of Tandem and its parts")
    ] = False,
) -> None:
    """\b
    Reinforcement learning for Qwen3.5 vision-language models.
    Example: tandem train demo trainer.total_steps=2 --dry-run
    """


app.command("train")(train)
app.command("sft")(sft)
app.command("eval")(evaluate)
app.command("demo")(demo)
app.command("plan")(plan)
app.command("rehearse")(rehearse)
app.command("export")(export)
app.command("report")(report)
app.command("serve")(serve)
app.command("compare")(compare)
app.command("profile")(profile)
app.command("doctor")(doctor)
app.add_typer(inspect, name="inspect")
app.add_typer(debug, name="debug")
app.add_typer(cluster, name="cluster")
app.add_typer(data, name="data")


def main() -> None:
    sys.exit(edge.run(app))
