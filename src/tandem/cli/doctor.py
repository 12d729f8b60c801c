"""`tandem doctor`: what is installed and set up here, against what a run needs."""

import json
import sys
from dataclasses import asdict
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from tandem import devices
from tandem.cli.options import Json
from tandem.doctor.examine import examine, found_version
from tandem.doctor.finding import Finding
from tandem.doctor.stacks import StackName, stack_of
from tandem.errors import UserError

Device = Annotated[str, typer.Option("--device", help="npu, gpu or cpu; default: DEVICE, or what this machine looks like")]
StackOption = Annotated[str, typer.Option("--stack", help="guide or later; default: the installed Megatron-Core's", show_default=False)]
Quick = Annotated[bool, typer.Option("--quick", help="read versions, and import nothing")]
SIGNS: dict[Literal["ok", "note", "fault"], str] = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "fault": "[red]fault[/]"}


def doctor(device: Device = "", stack: StackOption = "", quick: Quick = False, as_json: Json = False) -> None:
    """Compare this machine and its packages with what a run needs.

    Exit code 0 only when a run could start; 2 when something is at fault.

    Example: tandem doctor --device cpu --quick
    """
    if device:
        devices.check_name(device)
    chosen = device or devices.likely()
    name = stack_name(stack, found_version("megatron-core"))
    found = examine(chosen, name, imports=not quick)
    faults = [finding for finding in found if finding.state == "fault"]
    if as_json:
        sys.stdout.write(
            json.dumps({"device": chosen, "stack": name, "ok": not faults, "findings": [asdict(one) for one in found]}, indent=2) + "\n"
        )
    else:
        show(Console(highlight=False), chosen, name, found)
    raise typer.Exit(2 if faults else 0)


def stack_name(asked: str, megatron: str | None) -> StackName:
    """Raises UserError for a name that is no stack."""
    if asked == "guide" or asked == "later":
        return asked
    if asked:
        raise UserError(
            f"unknown stack {asked!r}", "there are two sets of versions", "set --stack guide (Megatron-Core 0.16) or later (0.18)"
        )
    return stack_of(megatron)


def show(console: Console, device: str, stack: str, found: list[Finding]) -> None:
    table = Table(title=f"device {device}, stack {stack}", title_justify="left", show_lines=False, pad_edge=False, box=None)
    for column in ("component", "found", "wanted", ""):
        table.add_column(column, overflow="fold")
    for one in found:
        table.add_row(one.component, one.found, one.wanted, SIGNS[one.state])
    console.print(table)
    for one in found:
        if one.state != "ok":
            console.print(
                f"\n{SIGNS[one.state]} {one.component}: {one.found}; wanted: {one.wanted}\n  why: {one.why}\n  fix: {one.fix}",
                soft_wrap=True,
            )
    num_faults = sum(one.state == "fault" for one in found)
    console.print(f"\n{num_faults} {'fault' if num_faults == 1 else 'faults'}: no run can start" if num_faults else "\nA run can start.")
