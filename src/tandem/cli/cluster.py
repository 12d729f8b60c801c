"""`tandem cluster`: does the Ray cluster have what a run needs?"""

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tandem import devices
from tandem.cli.options import Json, Overrides, Recipe
from tandem.cli.output import result_stream
from tandem.config.checks import check
from tandem.config.load import load
from tandem.config.preflight import check_address

if TYPE_CHECKING:
    from tandem.actors.cluster_check import Place

cluster = typer.Typer(no_args_is_help=True, help="Look at the Ray cluster.\n\nExample: tandem cluster check demo")

Timeout = Annotated[float, typer.Option("--timeout", help="seconds to wait for all seats")]


@cluster.command("check")
def check_cluster(recipe: Recipe, overrides: Overrides = None, timeout_s: Timeout = 300.0, as_json: Json = False) -> None:
    """Seat a small actor wherever the run would have a training rank or a generator, and ask it what is there.

    Exit code 2 when the cluster cannot seat the run, or its nodes differ in what must be the same.

    Example: tandem cluster check qwen3_5_122b_a10b device=npu cluster.address=HEAD:6766
    """
    config = load(recipe, overrides or (), find_device=devices.likely)
    if config.device == "auto":
        config = config.model_copy(update={"device": devices.likely()})
    check(config)
    check_address(config.cluster.address)
    device = devices.DEVICES[config.device]
    from tandem.actors import cluster as ray_cluster
    from tandem.actors import cluster_check

    folder = Path(config.run_dir or "runs")
    with result_stream(as_json) as result:  # Ray writes warnings to standard output
        try:
            joined = ray_cluster.start(config, device)
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".cluster-check-") as mark:
                places = cluster_check.look_around(config, device, joined, str(Path(mark.name).resolve()), timeout_s)
        finally:
            import ray

            ray.shutdown()
        found = cluster_check.faults(config, places, ray_cluster.actor_environment(config, device))
        if as_json:
            result.write(json.dumps(cluster_check.as_json(places, found), indent=2) + "\n")
        else:
            console = Console(highlight=False)
            console.print(table_of(places))
            for fault in found:
                console.print(f"\n[red]fault[/] {fault}", soft_wrap=True)
            console.print("\nThe run has its seats." if not found else f"\n{len(found)} faults")
    raise typer.Exit(2 if found else 0)


def table_of(places: "list[Place]") -> Table:
    """A line for each node."""
    table = Table(box=None, pad_edge=False)
    for column in ("node", "host", "ranks", "generators", "devices", "/dev/shm free", "model", "sees the runs"):
        table.add_column(column, overflow="fold")
    for node in dict.fromkeys(place.node for place in places):
        here = [place for place in places if place.node == node]
        seats = [place.seat.split() for place in here]
        ranks, generators = ([int(number) for name, number in seats if name == kind] for kind in ("rank", "generator"))
        ids = [int(id) for place in here for id in place.devices]
        table.add_row(
            here[0].address,
            here[0].host,
            *(ranges(numbers) for numbers in (ranks, generators, ids)),
            f"{here[0].free_shared_memory_bytes / (1 << 30):.1f} GiB",
            here[0].model or "not here",
            "yes" if here[0].sees_run_dir else "no",
        )
    return table


def ranges(numbers: Iterable[int]) -> str:
    """[0, 1, 2, 5] -> `0-2, 5`; none: `-`."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{first}-{last}" if first != last else str(first) for first, last in spans) or "-"
