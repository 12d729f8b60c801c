"""Data and model of `tandem demo`, made once and reused."""

import json
import logging
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tandem.data.demo.write import write_demo_data
from tandem.data.rows import read_rows
from tandem.errors import UserError

VERSION = 1  # raise it when what is written changes
MARK = "tandem_demo.json"  # the last file written: a folder that has it is complete
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DemoAssets:
    model_path: str
    train_files: list[str]
    val_files: list[str]
    test_files: list[str]


def prepare_demo(root: Path, seed: int = 0) -> DemoAssets:
    """Make the demo's data and tiny model in `root`, or reuse what is there when it is complete and of this version and seed.

    Takes a few seconds and never leaves a half-made folder: it is built beside `root` and renamed.

    Raises:
        UserError: `root` holds something else, or cannot be written.
    """
    root = Path(root)
    wanted = {"version": VERSION, "seed": seed}
    if _read_mark(root) == wanted:
        return _assets(root)
    if root.exists() and (not root.is_dir() or (any(root.iterdir()) and _read_mark(root) is None)):
        raise UserError(f"{root} is not the demo's folder", f"it has no {MARK}, so it is not overwritten", "name an empty or a new folder")
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=root.parent))
        try:
            _build(building, seed)
            (building / MARK).write_text(json.dumps(wanted) + "\n")
            _move(building, root, wanted)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    except OSError as error:
        raise UserError(f"the demo's files cannot be written to {root}", str(error), "name a writable folder with 50 MB free") from error
    log.info("demo data and model are in %s", root)
    return _assets(root)


def _build(folder: Path, seed: int) -> None:
    from tandem.qwen3_5.tiny import make_tiny_model  # loads torch

    files = write_demo_data(folder / "data", seed)
    corpus = ["system\n", "user\n", "assistant\n", "\n\n"] * 100  # what the template writes, so that each is one token
    for row in read_rows([str(files["train"])]):
        corpus += [row.extra_info["question"], row.messages[-1]["content"], row.extra_info["response"]]
    make_tiny_model(folder / "model", corpus, seed, size="demo")


def _move(building: Path, root: Path, wanted: dict[str, int]) -> None:
    """Put `building` where `root` is. Another process may have done the same meanwhile: then its folder stays."""
    if root.exists() and _read_mark(root) != wanted:
        shutil.rmtree(root)
    try:
        os.rename(building, root)
    except OSError:
        if _read_mark(root) != wanted:
            raise


def _read_mark(root: Path) -> dict[str, int] | None:
    try:
        return json.loads((root / MARK).read_text())
    except (OSError, ValueError):
        return None


def _assets(root: Path) -> DemoAssets:
    train, val, test = ([str(root / "data" / f"{split}.parquet")] for split in ("train", "val", "test"))
    return DemoAssets(str(root / "model"), train, val, test)
