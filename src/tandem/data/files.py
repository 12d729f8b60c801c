"""Files of records: parquet, JSON lines and Arrow, in folders, and data sets of the hub. Opened here, understood in `layouts.py`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tandem.errors import UserError

HUB = "hf://"  # hf://owner/name, or with :split behind
KINDS = (".parquet", ".jsonl", ".json", ".arrow")
NO_DATA = ("dataset_info.json", "dataset_dict.json", "state.json")  # `datasets` writes them beside
Record = dict[str, Any]


def expand(paths: list[str]) -> list[Path]:
    """The files that `paths` name: files themselves, folders with files in them, data sets of the hub (downloaded if need be).

    Raises:
        UserError: a folder without data files, or a data set that cannot be had or has no such split.
    """
    return [file for path in paths for file in _expand(path)]


def _expand(path: str) -> list[Path]:
    if path.startswith(HUB):
        from tandem.data.hub import fetch

        name, _, split = path.removeprefix(HUB).partition(":")
        split = split or "train"
        patterns = [f"{place}{split}{end}" for place in ("", "data/", "*/") for end in (".parquet", "-*.parquet", ".jsonl")]
        folder = fetch(name, "dataset", tuple(patterns))
        found = sorted(file for pattern in patterns for file in folder.glob(pattern))
        if not found:
            why = "it is stored otherwise than as parquet or JSON lines, or has no split of this name"
            raise UserError(f"data set {name} has no files of split {split}", why, "save it as parquet and name the files")
        return list(dict.fromkeys(found))
    folder = Path(path)
    if not folder.is_dir():
        return [folder]
    found = sorted(file for file in folder.iterdir() if file.suffix in KINDS and file.name not in NO_DATA)
    if not found:
        raise UserError(f"{path} is a folder without data files", f"none of {', '.join(KINDS)} is in it", "name the files, or their folder")
    return found


class DataFile:
    """An open file: `schema` (of JSON lines: None, every record is checked by itself) and its records."""

    def __init__(self, path: Path):
        self.path = path
        if not path.is_file():
            raise UserError(f"data file {path} does not exist", "rows would be read from it", "check data.train_files and data.val_files")
        if path.stat().st_size == 0:
            raise UserError(f"data file {path} is empty", "it has no bytes", "write the file again, or name another one")
        self._parquet: pq.ParquetFile | None = None
        self._arrow: pa.Table | None = None
        self.schema: pa.Schema | None = None
        if path.suffix in (".jsonl", ".json"):
            return
        try:
            if path.suffix == ".arrow":
                self._arrow = _arrow_table(path)
                self.schema, num_rows = self._arrow.schema, self._arrow.num_rows
            else:
                self._parquet = pq.ParquetFile(path)
                self.schema, num_rows = self._parquet.schema_arrow, self._parquet.metadata.num_rows
        except PermissionError as error:
            raise UserError(f"data file {path} cannot be opened", str(error), "make the file readable") from error
        except (pa.ArrowException, OSError) as error:
            kind = "an Arrow" if path.suffix == ".arrow" else "a parquet"
            why = f"{_first_line(error)}; only names that end in .jsonl or .arrow are read as something else"
            raise UserError(f"data file {path} is not {kind} file", why, "write it again, or name another file") from error
        if num_rows == 0:
            self.close()
            raise UserError(f"data file {path} is empty", "it has 0 rows", "write the file again, or name another one")

    def __enter__(self) -> "DataFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._parquet is not None:
            self._parquet.close()

    def records(self, columns: list[str] | None) -> Iterator[Record | str]:
        """The records in order, some at a time, so that a large file is never held twice. Of JSON lines a broken one is its text.

        Args:
            columns: those to read; None: all.
        """
        try:
            if self._parquet is not None:
                for batch in self._parquet.iter_batches(batch_size=256, columns=columns):
                    yield from batch.to_pylist()
            elif self._arrow is not None:
                for batch in self._arrow.select(columns or self._arrow.column_names).to_batches(max_chunksize=256):
                    yield from batch.to_pylist()
            else:
                yield from _json_lines(self.path)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UserError(f"data file {self.path} is damaged", _first_line(error), "write or copy the file again") from error


def _arrow_table(path: Path) -> pa.Table:
    """Of an IPC file or stream; `datasets` writes streams. Mapped, not read."""
    source = pa.memory_map(str(path))
    try:
        return pa.ipc.open_file(source).read_all()
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_stream(source).read_all()


def _json_lines(path: Path) -> Iterator[Record | str]:
    """One object a line; empty lines are passed over. A line that is no object is given as its text."""
    with path.open(encoding="utf-8-sig") as file:  # some editors write a mark before the first line
        for line in file:
            if line.strip():
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):  # the latter: nested too deeply
                    record = None
                yield record if isinstance(record, dict) else line.strip()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
