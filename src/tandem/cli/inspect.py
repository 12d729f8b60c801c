"""`tandem inspect`: rows of data files, and samples of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tandem.cli.options import Overrides
from tandem.config.load import load_defaults
from tandem.progress import Progress

if TYPE_CHECKING:
    from tandem.data.look import Look, SeenRow

inspect = typer.Typer(
    no_args_is_help=True, help="Look at rows and at samples.\n\nExample: tandem inspect rollouts runs/demo-1 --order lowest"
)


@inspect.command("rollouts")
def rollouts(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run", show_default=False)],
    step: Annotated[int | None, typer.Option(help="else the newest", show_default=False)] = None,
    row: Annotated[str, typer.Option(help="its id, or its number: at every step", show_default=False)] = "",
    order: Annotated[str, typer.Option(metavar="ORDER", help="step, fidelity (worst first), highest or lowest reward")] = "step",
    count: Annotated[int, typer.Option(min=1, help="groups to show")] = 2,
) -> None:
    """Show samples with rewards, advantages and fidelity.

    Example: tandem inspect rollouts runs/demo-1 --order lowest --count 5
    """
    from tandem.report.inspect_rollouts import asked_groups
    from tandem.report.runs import run_folder
    from tandem.report.terminal import groups_text

    groups, rows = asked_groups(run_folder(run), step, row, order, count)
    Console(highlight=False).print(groups_text(groups, rows))


@inspect.command("data")
def data(
    file: Annotated[str, typer.Argument(metavar="FILE", help="parquet, .jsonl, .arrow, a folder, hf://NAME:SPLIT", show_default=False)],
    overrides: Overrides = None,
    shown: Annotated[int, typer.Option("--rows", min=0, help="rows to show")] = 3,
    html: Annotated[Path | None, typer.Option(metavar="OUT", help="also a page with the pictures", show_default=False)] = None,
) -> None:
    """Show rows, lengths in tokens, and what a run would leave out.

    Settings are the defaults, changed by data.* and model.path.

    Example: tandem inspect data train.parquet model.path=DIR data.max_prompt_length=512
    """
    from tandem.data.look import look
    from tandem.report.look import data_text

    config = load_defaults(overrides or ())
    seen = look([file], config.data, _builder(config), _progress())
    rows, summary, bad = [_as_dict(one) for one in seen.rows], _summary(seen), [" ".join(str(error).split()) for error in seen.bad]
    Console(highlight=False).print(data_text(rows, summary, bad, shown))
    if html:
        from tandem.report.page import write_rows_page

        typer.echo(write_rows_page(rows, summary, bad, seen.limit, html))


def _builder(config: Any) -> Any:
    if not config.model.path:
        return None
    from tandem.data.prompts import PromptBuilder

    return PromptBuilder(config.model.path, config.data)


def _progress() -> Progress:
    """A line on standard error now and then, where a person waits."""
    import time

    last = time.monotonic()

    def told(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > 5:
            last = time.monotonic()
            typer.echo(f"{done}/{total} rows", err=True)

    return told


def _as_dict(seen: "SeenRow") -> dict[str, Any]:
    from io import BytesIO

    from PIL import Image

    row, pictures = seen.row, []
    for data in seen.row.images:
        with Image.open(BytesIO(data)) as image:
            pictures.append({"type": image.format, "width": image.width, "height": image.height, "bytes": len(data), "data": data})
    prompt = "\n".join(f"{message['role']}: {message['content']}" for message in row.messages)
    told = {"id": row.id, "source": row.data_source, "prompt": prompt, "answer": row.ground_truth}
    return told | {"pictures": pictures, "tokens": seen.num_tokens, "rendered": seen.rendered}


def _summary(seen: "Look") -> list[str]:
    from collections import Counter

    sources = Counter(one.row.data_source or "no source" for one in seen.rows)
    pictures = sum(len(one.row.images) for one in seen.rows)
    lines = [f"{len(seen.rows)} rows, {pictures} pictures, {len(seen.bad)} bad rows"]
    lines.append("sources: " + ", ".join(f"{name} {count}" for name, count in sources.most_common()))
    lengths = sorted(one.num_tokens for one in seen.rows if one.num_tokens is not None)
    if not lengths:
        return [*lines, "lengths in tokens need a model: model.path=FOLDER"]
    lines.append(f"tokens: {lengths[0]} to {lengths[-1]}, median {_at(lengths, 0.5)}, 95% up to {_at(lengths, 0.95)}")
    what = "would be left out" if seen.filters else f"would be cut (data.truncation={seen.truncation})"
    if not seen.filters and seen.truncation == "error":
        what = "would end the run (data.truncation=error)"
    return [*lines, f"{len(seen.overlong)} rows are longer than data.max_prompt_length={seen.limit} and {what}"]


def _at(values: Sequence[int], share: float) -> int:
    return values[min(len(values) - 1, int(share * len(values)))]
