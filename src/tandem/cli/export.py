"""`tandem export`: a checkpoint as a Hugging Face folder."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from tandem.cli.options import Json, Quiet
from tandem.cli.output import result_stream
from tandem.progress import Progress

Name = Annotated[str, typer.Argument(metavar="RUN[/STEP]", help="a run's folder: its newest checkpoint, or RUN/40", show_default=False)]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="a folder that is empty or not there yet", show_default=False)]
Dtype = Annotated[Literal["as-stored", "bfloat16", "float32"], typer.Option("--dtype", help="of the model's weights")]
Model = Annotated[str, typer.Option("--model", metavar="DIR", help="the start model, if it has moved since", show_default=False)]


def export(name: Name, out: Out, dtype: Dtype = "as-stored", model: Model = "", quiet: Quiet = False, as_json: Json = False) -> None:
    """Write a checkpoint as a Hugging Face folder.

    In one process, without Ray, devices or the memory for a model. What was not
    trained is the start model's. The folder is read again before it is there.

    Example: tandem export runs/demo-1/40 --out my-model
    """
    from tandem.checkpoint.export_step import export_checkpoint
    from tandem.track.console import Console
    from tandem.track.events import PhaseAdvanced, PhaseEnded, PhaseStarted

    with result_stream(as_json) as result:
        with Console(quiet=quiet or as_json) as console:

            @contextmanager
            def phase(what: str) -> Iterator[Progress]:
                began = time.monotonic()
                console.emit(PhaseStarted(what))
                yield lambda done, total: console.emit(PhaseAdvanced(what, done, total))
                console.emit(PhaseEnded(what, time.monotonic() - began))

            done = export_checkpoint(name, out, phase, model=model, dtype="" if dtype == "as-stored" else dtype)
        if as_json:
            result.write(json.dumps(asdict(done), indent=2) + "\n")
        else:
            size = f"{done.num_bytes / 1e9:.2f} GB" if done.num_bytes > 1e9 else f"{done.num_bytes / 1e6:.1f} MB"
            result.write(f"{done.path}: the policy after step {done.step}, {done.num_tensors} tensors, {size}\n")
