"""`tandem plan`: is the layout legal, what does it hold, compute and send, does it fit? Loads nothing heavy."""

import json
import os
import re
import sys
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console

from tandem import devices
from tandem.cli.options import Json, Overrides, Recipe
from tandem.config.load import load
from tandem.devices import cpu
from tandem.errors import UserError
from tandem.plan.advice import smallest_change
from tandem.plan.plan import as_machine, legal_shapes, make_plan, with_devices
from tandem.plan.report import plan_json, refused_json, search_json
from tandem.plan.search import best_layouts
from tandem.plan.show import show_plan, show_refusal, show_search

Devices = Annotated[int, typer.Option("--devices", min=0, help="training devices, instead of the recipe's; 0: the recipe's")]
Memory = Annotated[str, typer.Option("--memory", help="of a device, for example 64GiB", show_default=False)]
HostMemory = Annotated[str, typer.Option("--host-memory", help="of a node, for example 1.5TiB", show_default=False)]
Search = Annotated[bool, typer.Option("--search", help="list the best legal layouts")]
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


def plan(
    recipe: Recipe, overrides: Overrides = None, num_devices: Devices = 0, memory: Memory = "", host_memory: HostMemory = "",
    search: Search = False, as_json: Json = False,
) -> None:  # fmt: skip
    """Say what a run will hold, compute and send, before it starts.

    Exit code 2 when the layout is illegal or does not fit.

    Example: tandem plan demo rollout.tp=2 --memory 16GiB
    """
    device = partial(device_to_plan_for, bool(memory))
    config = load(recipe, overrides or (), find_device=device)
    if config.device == "auto":
        config = config.model_copy(update={"device": device()})
    if num_devices:
        config = with_devices(config, num_devices)
    machine = as_machine(config, num_bytes(memory), num_bytes(host_memory) or (cpu.memory_bytes() if config.device == "cpu" else 0))
    console = Console(highlight=False)
    shapes, broken = legal_shapes(config)
    if search:
        found = best_layouts(config, shapes, machine)
        if as_json:
            _write(search_json(found))
        else:
            console.print(show_search(found))
        raise typer.Exit(0 if found and found[0].plan.fits is not False else 2)
    if broken:
        if as_json:
            _write(refused_json(config.recipe, broken))
        else:
            console.print(show_refusal(broken))
        raise typer.Exit(2)
    made = make_plan(config, shapes, machine)
    change = smallest_change(made) if made.fits is False else None
    if as_json:
        _write(plan_json(made, change))
    else:
        console.print(show_plan(made, change))
    raise typer.Exit(2 if made.fits is False else 0)


def device_to_plan_for(has_memory: bool) -> str:
    """The device that is named or looked like; gpu on a machine without one when a device's memory is given."""
    likely = devices.likely()
    return "gpu" if likely == "cpu" and has_memory and "DEVICE" not in os.environ else likely


def num_bytes(text: str) -> int:
    """`64GiB`, `80GB`, `1.5T`, `68719476736`; an empty text is 0. Raises UserError for another text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", text.strip().lower()) if text else None
    if text and not match:
        raise UserError(f"`{text}` is not an amount of memory", "it is a number and a unit", "write it like 64GiB or 80GB")
    number = int(float(match[1]) * UNITS[match[2] or ""]) if match else 0
    if 0 < number < UNITS["mi"]:
        raise UserError(f"`{text}` is not an amount of memory: {number} bytes", "no device or node has so little", "add the unit: 64GiB")
    return number


def _write(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
