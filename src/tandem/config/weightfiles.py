"""The weight files of a model folder by their headers: which tensor lies where. Reads no weights.

A safetensors file is 8 bytes with the length of a JSON header, the header, and the tensors' bytes.
"""

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tandem.errors import UserError

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
        UserError: there are none, one is missing or not whole, or the index does not say what the headers say.
    """
    index = folder / INDEX
    if not index.is_file():
        if not (folder / SINGLE).is_file():
            raise UserError(f"no weights in {folder}", f"neither {SINGLE} nor {INDEX} is there", "download the model again")
        return {SINGLE: read_header(folder / SINGLE)}
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{index} has no weight_map", "it says which file holds which tensor", "download the model again")
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
        entries = [(name, entry) for name, entry in json.loads(raw[8:]).items() if name != "__metadata__"]
        stored = {
            name: Stored(entry["dtype"], tuple(entry["shape"]), *(len(raw) + offset for offset in entry["data_offsets"]))
            for name, entry in sorted(entries, key=lambda item: item[1]["data_offsets"])
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise broken from error
    if max((tensor.end for tensor in stored.values()), default=len(raw)) != size:
        raise broken
    return Header(raw, stored, size)


def read_json(path: Path) -> dict[str, Any]:
    """Raises UserError unless the file holds a JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UserError(f"cannot read {path}", f"it is not valid JSON: {error}", "download or write the file again") from error
    if not isinstance(value, dict):
        raise UserError(f"cannot use {path}", "it holds no JSON object", "download or write the file again")
    return value
