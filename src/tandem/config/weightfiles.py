"""The weight files of a model folder by their headers: which tensor lies where. Reads no weights.

A safetensors file is 8 bytes with the length of a JSON header, the header, and the tensors' bytes.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tandem.errors import UserError

MODEL = ("model.", "lm_head.")  # name space of the model proper; multi-token-prediction tensors (`mtp.`) lie outside
TRAINED_DTYPES = ("F32", "BF16", "F16")
_BY_BYTES = {8: ("F64", "I64", "U64"), 4: ("F32", "I32", "U32"), 2: ("BF16", "F16", "I16", "U16"), 1: ("I8", "U8", "BOOL")}
_ITEM_BYTES = {dtype: num_bytes for num_bytes, dtypes in _BY_BYTES.items() for dtype in dtypes}
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


@dataclass(frozen=True)
class Stored:
    """A tensor as it lies in its file."""

    dtype: str  # the format's name: BF16, F32, ...
    shape: tuple[int, ...]
    begin: int  # bytes of the file
    end: int

    @property
    def item_bytes(self) -> int:
        return (self.end - self.begin) // max(1, prod(self.shape))


@dataclass(frozen=True)
class Header:
    raw: bytes  # everything before the tensors
    tensors: dict[str, Stored]  # in the order of their bytes
    file_bytes: int


def read_headers(folder: Path) -> dict[str, Header]:
    """File name -> header, of all weight files of a folder.

    Raises:
        UserError: there are none, one is missing or not whole, the index does not say what the headers say, or a tensor of the model has a
            dtype that is not trained.
    """
    headers = _read_headers(folder)
    wrong = [
        (tensor, stored.dtype, name)
        for name, header in headers.items()
        for tensor, stored in header.tensors.items()
        if tensor.startswith(MODEL) and stored.dtype not in TRAINED_DTYPES
    ]
    if wrong:
        tensor, dtype, name = wrong[0]
        raise UserError(
            f"{tensor} in {folder / name} is stored as {dtype}" + (f", and {len(wrong) - 1} more are" if len(wrong) > 1 else ""),
            f"weights are trained from {', '.join(TRAINED_DTYPES)}; quantised ones are none",
            "use the model's folder with its original weights",
        )
    return headers


def _read_headers(folder: Path) -> dict[str, Header]:
    index = folder / INDEX
    if not index.is_file():
        if not (folder / SINGLE).is_file():
            raise UserError(f"no weights in {folder}", f"neither {SINGLE} nor {INDEX} is there", "download the model again")
        return {SINGLE: read_header(folder / SINGLE)}
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{index} has no weight_map", "it says which file holds which tensor", "download the model again")
    strays = [f"{tensor}: {file!r}" for tensor, file in weight_map.items() if not isinstance(file, str)]
    if strays:
        raise UserError(f"{index} names no file for {strays[0]}", "each tensor of weight_map has a file's name", "download the model again")
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if name != Path(name).name or not (folder / name).is_file()]
    if missing:
        told = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise UserError(
            f"{len(missing)} of {len(names)} weight files are missing in {folder}: {told}", f"{INDEX} names them", "download them again"
        )
    if SINGLE not in names and (folder / SINGLE).exists():
        raise UserError(
            f"{folder} has {SINGLE} beside {INDEX}",
            "the index does not name it: some programs read the one, some the other",
            "remove the one that is not the model",
        )
    headers = {name: read_header(folder / name) for name in names}
    found = {(tensor, name) for name, header in headers.items() for tensor in header.tensors}
    wrong = sorted(found ^ set(weight_map.items()))
    if wrong:
        told = ", ".join(f"{tensor} in {name}" for tensor, name in wrong[:3]) + (", ..." if len(wrong) > 3 else "")
        raise UserError(
            f"{index} does not say what the weight files hold: {told}", f"{len(wrong)} places differ", "download the model again"
        )
    return headers


def read_header(path: Path) -> Header:
    """Raises UserError unless the file is as long as its header says."""
    size = path.stat().st_size
    broken = UserError(f"{path} is not a whole safetensors file", f"its {size} bytes do not match its header", "download it again")
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if 8 + length > size:
            raise broken
        raw = start + file.read(length)
    try:
        entries = dict(json.loads(raw[8:]))
        metadata = entries.pop("__metadata__", {}).values()
        stored = {
            name: Stored(entry["dtype"], tuple(entry["shape"]), *(len(raw) + offset for offset in entry["data_offsets"]))
            for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"])
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise broken from error
    if not all(isinstance(value, str) for value in metadata):
        raise broken
    at = len(raw)
    for tensor in stored.values():
        if tensor.begin != at or not _is_sound(tensor):
            raise broken
        at = tensor.end
    if at != size:
        raise broken
    return Header(raw, stored, size)


def recast(header: Header, dtype_of: Callable[[str, Stored], str]) -> Header:
    """The header of a file with the same tensors in the same order, of the dtypes that `dtype_of` gives for a name and how it is stored."""
    metadata = json.loads(header.raw[8:]).get("__metadata__")
    entries: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    at, dtypes = 0, {}
    for name, stored in header.tensors.items():
        dtypes[name] = dtype_of(name, stored)
        end = at + (stored.end - stored.begin if dtypes[name] == stored.dtype else prod(stored.shape) * _ITEM_BYTES[dtypes[name]])
        entries[name] = {"dtype": dtypes[name], "shape": list(stored.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format wants tensors to begin at a multiple of 8
    raw = struct.pack("<Q", len(text)) + text
    places = {name: entry["data_offsets"] for name, entry in entries.items() if name in dtypes}
    tensors = {name: Stored(dtypes[name], header.tensors[name].shape, len(raw) + a, len(raw) + b) for name, (a, b) in places.items()}
    return Header(raw, tensors, len(raw) + at)


def _is_sound(tensor: Stored) -> bool:
    """Does it have as many bytes as its shape and dtype say, where the dtype is a known one?"""
    if not isinstance(tensor.dtype, str) or not all(type(length) is int and length >= 0 for length in tensor.shape):
        return False
    item_bytes = _ITEM_BYTES.get(tensor.dtype)
    num_bytes = tensor.end - tensor.begin
    return type(num_bytes) is int and num_bytes >= 0 and (item_bytes is None or num_bytes == item_bytes * prod(tensor.shape))


def read_json(path: Path) -> dict[str, Any]:
    """Raises UserError unless the file holds a JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"cannot read {path}", f"it is not valid JSON: {error}", "download or write the file again") from error
    if not isinstance(value, dict):
        raise UserError(f"cannot use {path}", "it holds no JSON object", "download or write the file again")
    return value
