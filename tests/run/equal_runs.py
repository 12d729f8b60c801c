"""Whether two runs came to the same numbers, bit for bit: what resume must give."""

import json
from pathlib import Path

import pyarrow.parquet as pq

TIMES = ("time/", "tokens_per", "memory/", "bytes_per", "mfu")


def metrics_of(run_dir: Path) -> list[dict]:
    """Rows of metrics.jsonl without what a clock or the machine's memory said."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if not any(part in name for part in TIMES)} for row in rows]


def differences(run: Path, whole: Path) -> list[str]:
    """Names of what is not equal: metrics by step, samples by step, exported files. Both runs have ended."""
    ours, theirs = metrics_of(run), metrics_of(whole)
    found = [f"{len(ours)} rows of metrics, {len(theirs)} expected"] if len(ours) != len(theirs) else []
    for mine, other in zip(ours, theirs):
        found += [f"step {other['step']}: {name}" for name in sorted(mine.keys() | other.keys()) if mine.get(name) != other.get(name)]
    for pattern, equal in (("rollouts/*.parquet", _equal_tables), ("export/*", _equal_bytes)):
        names = {path.relative_to(folder).as_posix() for folder in (run, whole) for path in folder.glob(pattern)}
        found += [name for name in sorted(names) if not equal(run / name, whole / name)]
    return found


def _equal_tables(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and pq.read_table(one).equals(pq.read_table(other))


def _equal_bytes(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.read_bytes() == other.read_bytes()
