"""`tandem rehearse`: the recipe's layout with a small model on this machine's CPU."""

import json
from dataclasses import asdict

import typer
from rich.console import Console as Terminal
from rich.table import Table

from tandem import devices
from tandem.cli.cluster import ranges
from tandem.cli.options import Json, Overrides, Quiet, Recipe
from tandem.cli.output import result_stream
from tandem.config.checks import check, world_size
from tandem.config.load import load
from tandem.plan.plan import legal_shapes
from tandem.plan.show import show_refusal


def rehearse(recipe: Recipe, overrides: Overrides = None, quiet: Quiet = False, as_json: Json = False) -> None:
    """Run the recipe's layout with a small model on this CPU.

    Process groups, schedule, weight map, an update, a checkpoint written and read, a publication's plan: compared with one process.
    Exit code 2 when the layout is illegal, 1 when it does something else than one process.

    Example: tandem rehearse qwen3_5_35b_a3b device=npu
    """
    config = load(recipe, overrides or (), find_device=devices.likely)
    check(config)
    shapes, broken = legal_shapes(config)
    if broken:
        Terminal(highlight=False).print(show_refusal(broken))
        raise typer.Exit(2)
    from tandem.rehearse.rehearse import rehearse as run
    from tandem.track.console import Console
    from tandem.track.events import PhaseEnded, PhaseStarted

    what = f"rehearsing {world_size(config)} ranks"
    with result_stream(as_json) as result:
        with Console(quiet=quiet) as console:
            console.emit(PhaseStarted(what))
            done = run(config, dense=not shapes.num_experts)
            console.emit(PhaseEnded(what, done.seconds))
        if as_json:
            result.write(json.dumps(asdict(done) | {"ok": not done.faults}, indent=2) + "\n")
        else:
            show(Terminal(file=result, highlight=False), done)
    raise typer.Exit(1 if done.faults else 0)


def show(terminal: Terminal, done) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("rank", "stage", "layers", "experts", "parameters", "weights", "optimizer", "saved", "published"):
        table.add_column(column, justify="left" if column in ("layers", "experts") else "right")
    for held in done.ranks:
        numbers = (held.weight_bytes, held.optimizer_bytes, held.checkpoint_bytes, held.published_bytes)
        table.add_row(
            *(str(held.rank), str(held.stage), ranges(held.layers), ranges(held.experts), f"{held.num_parameters:,}"),
            *(f"{number / 1024:.0f} KiB" for number in numbers),
        )
    terminal.print(table)
    terminal.print(
        f"\nagainst one process: log-probs {done.max_abs_logprob_diff:.1e}, loss {done.loss_rel_diff:.1e}, "
        f"gradient norm {done.grad_norm_rel_diff:.1e}; {done.seconds:.0f} s"
    )
    for fault in done.faults:
        terminal.print(f"[red]fault[/] {fault}")
    if not done.faults:
        terminal.print("The layout does what one process does.")
