"""`tandem export`: the policy of a checkpoint as a Hugging Face folder, without Ray, devices or the memory for a model."""

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tandem.checkpoint.export import copied_files, export_files
from tandem.checkpoint.model_card import CARD, START_CARD, model_card
from tandem.config.checkpointfolder import TRAINERS, Checkpoint, damaged, named_checkpoint
from tandem.config.modelfolder import check_model
from tandem.config.schema import Config, ParallelConfig
from tandem.config.weightfiles import INDEX, MODEL, TRAINED_DTYPES, Header, Stored, recast
from tandem.data.assets import with_assets
from tandem.engine.fork_ranks import fork_ranks
from tandem.errors import UserError
from tandem.progress import Progress
from tandem.qwen3_5.checkpoint import HuggingFaceFolder
from tandem.sync.digest import file_digest

DTYPES = {"float32": "F32", "bfloat16": "BF16"}
LIMIT_S = 24 * 3600.0
_KEPT = ("linear_attn.A_log", "linear_attn.norm.weight")  # published in fp32 in the midst of bf16


@dataclass(frozen=True)
class Exported:
    path: str
    step: int
    num_tensors: int
    num_bytes: int  # of the weight files


def export_checkpoint(
    name: str,
    out: Path,
    phase: Callable[[str], AbstractContextManager],
    *,
    model: str = "",
    dtype: str = "",
) -> Exported:
    """Write `out`, whole only once it has that name.

    Args:
        name: `RUN`, `RUN/STEP` or a checkpoint's folder.
        phase: shows a piece of work while it lasts.
        model: the start model, where it is not at the run's `model.path` any more.
        dtype: `float32` or `bfloat16` for the model's tensors; empty: those of the start model. Decay rates and output norms of Gated
            DeltaNet that the start model has in fp32 stay so in bfloat16.

    Raises:
        UserError: no such run, step or start model; a file of the checkpoint is missing or has changed; `out` is not empty or has no room.
    """
    checkpoint = named_checkpoint(name)
    check_target(out)
    config = Config.model_validate(checkpoint.state["config"])
    if model:
        config = config.model_copy(update={"model": config.model.model_copy(update={"path": model}), "prepare": ""})
    if config.model.path:
        check_model(config.model.path, ParallelConfig())
    config = with_assets(config, phase)
    source = Path(config.model.path).expanduser()
    check_model(str(source), ParallelConfig())
    folder = HuggingFaceFolder(source)
    headers = {file: recast(header, _as(dtype)) if dtype else header for file, header in folder.headers.items()}
    check_room(out, sum(header.file_bytes for header in headers.values()) + sum(file.stat().st_size for file in copied_files(folder)))
    with phase("comparing the checkpoint's files") as progress:
        check_bytes(checkpoint, progress)

    def write(target: Path) -> list:
        if (target / CARD).exists():
            (target / CARD).rename(target / START_CARD)
        (target / CARD).write_text(model_card(checkpoint, config, dtype), encoding="utf-8")
        if dtype:
            _set_dtype(target, headers, dtype)
        given = {"trainers": str(checkpoint.path / TRAINERS), "config": config, "source": str(source), "target": str(target)}
        return fork_ranks("tandem.engine.stream_export:stream", ParallelConfig(), 1, timeout_s=LIMIT_S, **given)[0]

    with phase(f"exporting step {checkpoint.step}"):
        export_files(folder, out, write, headers if dtype else None)
    num_tensors = sum(len(header.tensors) for header in headers.values())
    return Exported(str(out), checkpoint.step, num_tensors, sum(header.file_bytes for header in headers.values()))


def check_target(out: Path) -> None:
    """Raises UserError unless `out` is an empty folder or can be made one."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there and not empty", "files of two exports would mix", "give another --out, or remove it")
    try:
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be made", str(error), "give another --out") from error


def check_room(out: Path, num_bytes: int) -> None:
    """Raises UserError unless the disk under `out` has that many bytes left."""
    free = shutil.disk_usage(out.absolute().parent).free
    if free < num_bytes:
        raise UserError(
            f"not enough room for {out}: {num_bytes / 1e9:.2f} GB are needed",
            f"{free / 1e9:.2f} GB are free",
            "make room, or give another --out",
        )


def check_bytes(checkpoint: Checkpoint, progress: Progress) -> None:
    """Raises UserError, naming the file, when one of the ranks' files has changed. Args: progress: told (done, total), in files."""
    files = {name: digest for name, digest in checkpoint.digests.items() if name.startswith(f"{TRAINERS}/")}
    for number, (name, digest) in enumerate(files.items(), 1):
        progress(number - 1, len(files))
        if file_digest(checkpoint.path / name) != digest:
            raise damaged(checkpoint.path / name, "its bytes are not those that were saved")


def _as(dtype: str) -> Callable[[str, Stored], str]:
    def dtype_of(name: str, stored: Stored) -> str:
        is_kept = stored.dtype == "F32" and dtype == "bfloat16" and name.endswith(_KEPT)
        return DTYPES[dtype] if name.startswith(MODEL) and stored.dtype in TRAINED_DTYPES and not is_kept else stored.dtype

    return dtype_of


def _set_dtype(target: Path, headers: dict[str, Header], dtype: str) -> None:
    """Say in config.json and the index what the weight files are now."""
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        for key in ("dtype", "torch_dtype"):
            if key in part:
                part[key] = dtype
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if (target / INDEX).is_file():
        index = json.loads((target / INDEX).read_text(encoding="utf-8"))
        sizes = [stored.end - stored.begin for header in headers.values() for stored in header.tensors.values()]
        index["metadata"] = (index.get("metadata") or {}) | {"total_size": sum(sizes)}
        (target / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
