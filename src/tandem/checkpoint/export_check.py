"""What an export must hold before it gets its name: every byte written once, the source's layout, and on the disk what the ranks wrote."""

import os
from pathlib import Path

from blake3 import blake3
from safetensors import SafetensorError, safe_open

from tandem.config.weightfiles import INDEX, Header
from tandem.engine.export import CHUNK_BYTES, Piece
from tandem.errors import RunError
from tandem.qwen3_5.checkpoint import HuggingFaceFolder


def check_export(source: HuggingFaceFolder, target: Path, pieces: list[Piece]) -> None:
    """Raises RunError naming the tensor, or the file, that is not as it should be."""
    for piece in pieces:
        if piece.file not in source.headers or piece.begin + piece.num_bytes > source.headers[piece.file].file_bytes:
            raise _wrong(f"{piece.name} was written to {piece.file} from byte {piece.begin} on", "the start model has no such place")
    for name, header in source.headers.items():
        inside = sorted((piece for piece in pieces if piece.file == name), key=lambda piece: (piece.begin, piece.num_bytes))
        _check_covered(name, header, inside)
        _check_layout(source.path / name, target / name)
        _check_bytes(target / name, header, inside)
    if (source.path / INDEX).exists() and (source.path / INDEX).read_bytes() != (target / INDEX).read_bytes():
        raise _wrong(f"{INDEX} is not the start model's", "it must name the same tensors in the same files")


def _check_covered(name: str, header: Header, pieces: list[Piece]) -> None:
    """Raise unless `pieces`, in the order of their bytes, are every byte behind the header exactly once."""
    at = len(header.raw)
    for piece in pieces:
        if piece.begin < at:
            raise _wrong(f"{piece.name} in {name} was written twice, or over another tensor", f"from byte {piece.begin} on, {at} was next")
        if piece.begin > at:
            raise _not_written(name, header, at, piece.begin)
        at += piece.num_bytes
    if at < header.file_bytes:
        raise _not_written(name, header, at, header.file_bytes)


def _not_written(name: str, header: Header, begin: int, end: int) -> RunError:
    tensor = next(tensor for tensor, stored in header.tensors.items() if stored.begin <= begin < stored.end)
    return _wrong(f"{tensor} in {name} was not written, or not all of it", f"bytes {begin} to {end} are missing")


def _check_layout(source: Path, target: Path) -> None:
    try:
        same = _layout(source) == _layout(target)
    except SafetensorError as error:
        raise _wrong(f"{target.name} cannot be read", str(error)) from error
    if not same:
        raise _wrong(f"{target.name} has not the start model's names, shapes, dtypes or metadata", "its header must be the same")


def _layout(path: Path) -> tuple[dict[str, str], list[tuple[str, list[int], str]]]:
    with safe_open(path, "pt") as file:
        slices = [(name, file.get_slice(name)) for name in file.keys()]  # noqa: SIM118 - it is no dictionary
        return file.metadata(), [(name, part.get_shape(), part.get_dtype()) for name, part in slices]


def _check_bytes(path: Path, header: Header, pieces: list[Piece]) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # from the disk, not from memory
        if file.read(len(header.raw)) != header.raw:
            raise _wrong(f"{path.name} has not the start model's header", "tensors would be read in another order")
        for piece in pieces:
            hasher = blake3(max_threads=blake3.AUTO)
            for begin in range(0, piece.num_bytes, CHUNK_BYTES):
                hasher.update(file.read(min(CHUNK_BYTES, piece.num_bytes - begin)))
            if hasher.hexdigest() != piece.checksum:
                raise _wrong(f"{piece.name} in {path.name} is damaged", "it reads back differently from what was written")


def _wrong(what: str, why: str) -> RunError:
    return RunError(f"the export is not whole: {what}", why, "check the disk and export again; if it repeats, report it")
