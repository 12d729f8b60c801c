"""Geo3K (Geometry3K): 3,002 geometry problems with a drawing, from the hub or a local copy, as train.parquet and test.parquet."""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tandem.data.columns import written_schema
from tandem.data.hub import fetch
from tandem.data.rows import read_rows
from tandem.data.types import Row
from tandem.errors import UserError

DEFAULT_SOURCE = "tyzhu/geo3k"
SIZES = {"train": 2101, "validation": 300, "test": 601}  # of hiyouga/geometry3k; tyzhu/geo3k is its train and test, processed
WRITTEN = ("train", "test")
SCHEMA = written_schema()


def write_geo3k(out_dir: Path, source: str = DEFAULT_SOURCE, *, offline: bool = False, splits: Sequence[str] = WRITTEN) -> dict[Path, int]:
    """Write `splits` to <out_dir>/<split>.parquet, in the layout of `tandem.data.rows`. A file is there whole or not at all.

    Args:
        source: a hub name, or a folder with train and test as parquet files, at its top or in data/, as published or processed.
        offline: use what is on this machine.

    Returns:
        file -> number of rows.

    Raises:
        UserError: the source cannot be had, a row is broken, a split has another size than Geo3K's, or a file cannot be written.
    """
    folder = Path(source).expanduser()
    if not folder.exists() and (folder.is_absolute() or source.startswith(".") or source.count("/") > 1):
        raise UserError(f"there is no folder {folder}", "it is not a hub name (owner/name) either", "check --source")
    found = split_files(folder if folder.exists() else fetch(source, "dataset", ("*.parquet", "data/*.parquet"), offline))
    rows = {split: read_rows([str(path) for path in found[split]]) for split in splits}
    for split, files in found.items():
        num_rows = len(rows[split]) if split in rows else sum(pq.read_metadata(path).num_rows for path in files)
        if num_rows != SIZES[split]:
            raise UserError(
                f"{source} is not Geo3K: its {split} split has {num_rows} rows instead of {SIZES[split]}",
                "the copy is incomplete, or another data set",
                "download it again; rows of your own need no preparation: data.train_files=FILE data.val_files=FILE",
            )
    written = {}
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        for split in splits:
            table = pa.Table.from_pylist([_record(row, split, index) for index, row in enumerate(rows[split])], schema=SCHEMA)
            path = out_dir / f"{split}.parquet"
            with tempfile.TemporaryDirectory(dir=out_dir, prefix=".geo3k-") as beside:
                pq.write_table(table, Path(beside) / path.name)
                os.replace(Path(beside) / path.name, path)
            written[path] = len(rows[split])
    except OSError as error:
        raise UserError(f"cannot write {out_dir}", str(error), "name a folder you can write, with 200 MB free") from error
    return written


def split_files(folder: Path) -> dict[str, list[Path]]:
    """split -> its parquet files in order: `train.parquet`, or shards such as `train-00000-of-00001.parquet`."""
    for place in (folder, folder / "data"):
        found = {split: sorted([*place.glob(f"{split}.parquet"), *place.glob(f"{split}-*.parquet")]) for split in SIZES}
        found = {split: files for split, files in found.items() if files}
        if set(WRITTEN) <= found.keys():
            return found
    raise UserError(
        f"{folder} holds no Geo3K",
        "neither it nor its folder data has train and test as parquet files",
        f"name a copy of {DEFAULT_SOURCE} or hiyouga/geometry3k, or leave --source out to download it",
    )


def default_folder() -> Path:
    """Where the recipes have it."""
    return Path.home() / "data" / "geo3k"


def fetch_missing(files: Sequence[str], say: Callable[[str], None]) -> None:
    """Make those of `files` that are in `default_folder` and do not exist. Any other missing file is a mistake, for its reader to tell."""
    folder = default_folder()
    splits = [split for split in WRITTEN if str(folder / f"{split}.parquet") in files and not (folder / f"{split}.parquet").exists()]
    if not splits:
        return
    say(f"no {' and '.join(f'{split}.parquet' for split in splits)} in {folder}: fetching Geo3K from {DEFAULT_SOURCE}")
    for path, num_rows in write_geo3k(folder, splits=splits).items():
        say(f"{path}: {num_rows} rows")


def _record(row: Row, split: str, index: int) -> dict[str, Any]:
    question = row.extra_info.get("question") or row.messages[-1]["content"]
    return {
        "data_source": row.data_source,
        "prompt": row.messages,
        "images": [{"bytes": image, "path": None} for image in row.images],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": row.ground_truth},
        "extra_info": {"split": split, "index": index, "answer": row.ground_truth, "question": question},
    }
