"""`rollouts/step_000012.parquet`: every sample of a step, with its row, prompt, pictures' names, text, tokens, log-probs and grade."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tandem.errors import UserError

SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("row_id", pa.string()),  # names the row, "<file>:<row>"
        ("data_source", pa.string()),
        ("group", pa.int32()),  # which prompt of the step: a row may come twice
        ("sample", pa.int32()),  # which of the prompt's n samples
        ("prompt_text", pa.string()),
        ("prompt_rendered", pa.string()),  # as the chat template gave it to the model, one mark an image
        ("prompt_tokens", pa.int32()),  # image tokens counted
        ("images", pa.list_(pa.string())),  # names in rollouts/images/, null for one that was not kept
        ("ground_truth", pa.string()),
        ("response_text", pa.string()),
        ("token_ids", pa.list_(pa.int32())),  # of the response, R
        ("token_texts", pa.list_(pa.string())),  # R
        ("logprobs_rollout", pa.list_(pa.float32())),  # R, the generator's
        ("logprobs_train", pa.list_(pa.float32())),  # R, the trainer's; null where it computed none
        ("reward", pa.float32()),
        ("accuracy", pa.float32()),
        ("format", pa.float32()),
        ("also", pa.map_(pa.string(), pa.float32())),  # scores of further graders
        ("length_penalty", pa.float32()),
        ("kl_penalty", pa.float32()),
        ("advantage", pa.float32()),
        ("finish_reason", pa.string()),
        ("version", pa.int32()),  # of the weights that made it
        ("grade_reason", pa.string()),
    ]
)
_STEP = re.compile(r"step_(\d{6,})", re.ASCII)


def write_rollouts(run_dir: str | Path, step: int, rows: Sequence[dict[str, Any]]) -> Path:
    """Write one step's samples; `rows` hold every column but `step`, None where there is no value. Returns the file."""
    columns = set(SCHEMA.names) - {"step"}
    for row in rows:
        assert set(row) == columns, f"columns {sorted(set(row) ^ columns)}"  # pyarrow would fill or drop them silently
    table = pa.Table.from_pylist([{"step": step, **row} for row in rows], schema=SCHEMA)
    path = Path(run_dir) / "rollouts" / f"step_{step:06d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    pq.write_table(table, unfinished, compression="zstd")
    os.replace(unfinished, path)
    return path


def remove_rollouts_after(run_dir: str | Path, step: int) -> None:
    """Of steps that will be done again."""
    for later, path in rollout_files(run_dir).items():
        if later > step:
            path.unlink()


def rollout_files(run_dir: str | Path) -> dict[int, Path]:
    """The file of each step that has one, in order of steps."""
    found = {}
    for path in (Path(run_dir) / "rollouts").glob("step_*.parquet"):
        if match := _STEP.fullmatch(path.stem):
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def read_table(path: Path, columns: Iterable[str] = SCHEMA.names) -> pa.Table:
    """The samples of one step's file; a column that the version which wrote it did not know is all null.

    Raises:
        UserError: the file cannot be read.
    """
    columns = list(columns)
    try:
        with pq.ParquetFile(path) as file:
            table = file.read(columns=[name for name in columns if name in file.schema_arrow.names])
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path} cannot be read", str(error), "restore the file, or remove it") from error
    for name in columns:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(len(table), SCHEMA.field(name).type))
    return table.select(columns)


def num_rollouts(path: Path) -> int:
    """Samples in one step's file. Raises UserError when it cannot be read."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path} cannot be read", str(error), "restore the file, or remove it") from error


def as_rows(table: pa.Table) -> list[dict[str, Any]]:
    """One dictionary a sample; `also` is one, too."""
    rows = table.to_pylist()
    for row in rows:
        if "also" in row:
            row["also"] = dict(row["also"] or ())
    return rows


def logprob_differences(table: pa.Table) -> list[np.ndarray | None]:
    """|log p(trainer) - log p(generator)| of each sample's tokens, [R] float32; None where the trainer computed none."""
    trainer, generator = (table[name].combine_chunks() for name in ("logprobs_train", "logprobs_rollout"))
    has_both = trainer.is_valid().to_numpy(zero_copy_only=False)
    ours, theirs = (column.values.to_numpy(zero_copy_only=False) for column in (trainer, generator))
    starts, places = trainer.offsets.to_numpy(), generator.offsets.to_numpy()
    return [np.abs(ours[starts[i] : starts[i + 1]] - theirs[places[i] : places[i + 1]]) if has_both[i] else None for i in range(len(table))]
