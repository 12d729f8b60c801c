"""What train, sft, eval and demo have in common: prepare, launch, show what came of it."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.cli import edge
from tandem.cli.output import result_stream
from tandem.cli.prepare import prepare
from tandem.config.checkpointfolder import finished_steps
from tandem.config.load import resolved_yaml
from tandem.config.notes import notes
from tandem.config.preflight import Task
from tandem.config.schema import Config
from tandem.devices import DEVICES, process_environment
from tandem.devices.parts import choose_parts
from tandem.errors import UserError


@dataclass(frozen=True)
class Shown:
    """How much of a run its person wants to see."""

    quiet: bool = False
    verbose: bool = False
    log_json: bool = False  # progress
    as_json: bool = False  # the result

    def __post_init__(self) -> None:
        if self.quiet and (self.verbose or self.log_json):
            other = "--verbose" if self.verbose else "--log-json"
            raise UserError(f"--quiet with {other}", "one shows less than usual, the other more", "leave one of them out")


def start(task: Task, recipe: str, overrides: Sequence[str], shown: Shown, *, dry_run: bool = False) -> None:
    """Run a task, or with `dry_run` write its settings. Raises UserError, RunError, KeyboardInterrupt."""
    config = prepare(recipe, overrides, task, dry_run)
    as_json = shown.as_json
    if dry_run:
        sys.stdout.write(config.model_dump_json(indent=2) + "\n" if as_json else resolved_yaml(config) + _comments(config))
        return
    if task in ("train", "demo") and (steps := finished_steps(config)):
        _sweep(Path(config.run_dir))
        told = {"finished": True, "steps": steps, "run_dir": config.run_dir}
        sys.stdout.write(
            json.dumps(told, indent=2) + "\n" if as_json else f"finished: all {steps} steps of {config.run_dir} were done before\n"
        )
        return
    edge.log_into(Path(config.run_dir))
    from tandem.track.console import Console
    from tandem.track.summary import summary_table

    with result_stream(as_json) as result:
        with Console(quiet=shown.quiet, verbose=shown.verbose, as_json=shown.log_json) as console:
            from tandem.run.launch import launch  # seconds of imports, with the console already ticking

            summary = launch(config, task, console)
            if not as_json:
                console.emit(summary_table(summary))
        if as_json:
            result.write(json.dumps(summary, indent=2) + "\n")


def _sweep(run_dir: Path) -> None:
    """Remove the shared memory that a run left which was killed at its very end."""
    from tandem.actors import remains
    from tandem.run.run_dir import only_run_in
    from tandem.sync.shared_memory import cleanup, shared_memory_prefix

    with only_run_in(run_dir):
        remains.remove(run_dir)
        cleanup(shared_memory_prefix(run_dir))


def _comments(config: Config) -> str:
    """Comment lines under the settings: notes, the environment of every process on the chosen device, and what layers are made of on
    each device, as far as this environment has it."""
    lines = notes(config)
    if config.device in DEVICES:
        variables = process_environment(DEVICES[config.device], config.trainer.num_threads)
        lines += [f"environment of every process on {config.device}:", *(f"  {name}={value}" for name, value in variables.items())]
    requested = "portable" if config.model.layers == "portable" else "auto"  # the other machine may have what `fused` insists on
    lines += [f"on {name}: {'; '.join(choose_parts(device, requested).reasons)}" for name, device in DEVICES.items()]
    return "".join(f"# {line}\n" for line in lines)
