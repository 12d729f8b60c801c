"""`rollouts/step_000012.parquet`: every sample of a step, with its row id, text, tokens, log-probs and grade."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("row_id", pa.string()),  # names the row and so its images, "<file>:<row>"
        ("data_source", pa.string()),
        ("sample", pa.int32()),  # which of the prompt's n samples
        ("prompt_text", pa.string()),
        ("response_text", pa.string()),
        ("token_ids", pa.list_(pa.int32())),  # of the response, R
        ("logprobs_rollout", pa.list_(pa.float32())),  # R, the generator's
        ("logprobs_train", pa.list_(pa.float32())),  # R, the trainer's; null where it computed none
        ("reward", pa.float32()),
        ("accuracy", pa.float32()),
        ("format", pa.float32()),
        ("advantage", pa.float32()),
        ("finish_reason", pa.string()),
        ("version", pa.int32()),  # of the weights that made it
        ("grade_reason", pa.string()),
    ]
)


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
    for path in (Path(run_dir) / "rollouts").glob("step_*.parquet"):
        if (found := re.fullmatch(r"step_(\d{6,})", path.stem, re.ASCII)) and int(found[1]) > step:
            path.unlink()


def read_last_rollouts(run_dir: str | Path, num_rows: int) -> list[dict[str, Any]]:
    """The last rows of the newest step, without the per-token columns; [] when nothing was written yet."""
    paths = sorted((Path(run_dir) / "rollouts").glob("step_*.parquet"))
    if not paths:
        return []
    columns = [field.name for field in SCHEMA if not pa.types.is_list(field.type)]
    return pq.read_table(paths[-1], columns=columns).to_pylist()[-num_rows:]
