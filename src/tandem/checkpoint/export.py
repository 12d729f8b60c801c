"""The policy as a Hugging Face folder like the one the run started from: same files, tensors, dtypes, order, index. Checked afterwards."""

import logging
import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tandem.actors.train_group import TrainGroup
from tandem.checkpoint.export_check import check_export
from tandem.config.weightfiles import INDEX, Header
from tandem.engine.export import Piece, write_at
from tandem.errors import cannot_write
from tandem.qwen3_5.checkpoint import HuggingFaceFolder
from tandem.sync.digest import sync_path

log = logging.getLogger(__name__)

# Weights that were not trained, and indexes of them: beside trained ones somebody would load the wrong ones.
OTHER_WEIGHTS = (
    *("*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.ggml", "*.h5", "*.msgpack", "*.onnx", "*.npz"),
    *("*.safetensors.index.json", "*.bin.index.json", "consolidated*"),
)


def export(trainers: TrainGroup, source: Path, target: Path) -> Path:
    """Write `target`, whole only once it has that name: trained tensors from the ranks, everything else as it is in `source`.

    Left out are other forms of the start model's weights.

    Raises:
        RunError: a byte of a weight file was not written, or written twice, or reads back differently; names the tensor.
        UserError: the target's disk is not shared by all nodes.
    """
    return export_files(HuggingFaceFolder(source), target, lambda beside: trainers.export(str(source), str(beside)))


def export_files(
    source: HuggingFaceFolder, target: Path, write: Callable[[Path], list[Piece]], headers: dict[str, Header] | None = None
) -> Path:
    """The same with any writer of trained tensors.

    Args:
        write: writes them into the weight files of a folder, which are there at full size, and may change its other files.
        headers: of these weight files; None: those of the source.
    """
    beside = target.with_name(target.name + ".tmp")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        for file in copied_files(source):
            shutil.copyfile(file, beside / file.name)
        pieces = [piece for name, header in (headers or source.headers).items() for piece in _begin_file(source, name, header, beside)]
        pieces += write(beside)
        for path in (*beside.iterdir(), beside):
            sync_path(path)
        check_export(HuggingFaceFolder(beside) if headers else source, beside, pieces)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(beside, target)
        sync_path(target.parent)
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target


def copied_files(folder: HuggingFaceFolder) -> list[Path]:
    """The files that hold no weights."""
    rest = [file for file in folder.path.iterdir() if file.is_file() and file.name not in folder.headers]
    stale = sorted(file.name for file in rest if file.name != INDEX and any(file.match(pattern) for pattern in OTHER_WEIGHTS))
    if stale:
        log.info("not exported, since they hold the start model's weights in another form: %s", ", ".join(stale))
    return [file for file in rest if file.name not in stale]


def _begin_file(source: HuggingFaceFolder, name: str, header: Header, target: Path) -> list[Piece]:
    """Make a weight file at its full size, with the header and the tensors outside the model; returns what was written of these."""
    pieces = []
    with (source.path / name).open("rb") as read, (target / name).open("xb") as written:
        written.write(header.raw)
        written.truncate(header.file_bytes)
        written.flush()
        with mmap.mmap(read.fileno(), 0, access=mmap.ACCESS_READ) as mapping, memoryview(mapping) as content:
            for file, tensor in source.outside:
                if file == name:
                    stored, begin = source.headers[name].tensors[tensor], header.tensors[tensor].begin
                    checksum = write_at(written.fileno(), content[stored.begin : stored.end], begin)
                    pieces.append(Piece(tensor, name, begin, stored.end - stored.begin, checksum))
    return pieces
