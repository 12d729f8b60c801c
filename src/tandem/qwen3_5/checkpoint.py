"""Reading a Hugging Face folder tensor by tensor: sharded or not, experts fused or one by one."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tandem.config.weightfiles import MODEL, Stored, read_headers
from tandem.errors import UserError

log = logging.getLogger(__name__)

ROWS = 4096  # of the embedding, compared at a time
MAX_NAMES = 3  # of a kind in a message
EMBEDDING, OUTPUT = "model.language_model.embed_tokens.weight", "lm_head.weight"
_FUSED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}  # [experts, rows of all parts, columns]


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: elements of the stored `tensor` from `first` on. An expert's matrix may be a part of a fused tensor."""

    file: str
    tensor: str
    shape: tuple[int, ...]
    first: int
    begin: int  # byte of the file


class HuggingFaceFolder:
    """Tensors by name, experts one by one. Files stay mapped: what is not touched is not read.

    Args:
        tied: the config's `tie_word_embeddings`. A folder may store the output weight all the same; it is then a second place of the
            embedding and no tensor of its own.

    Raises:
        UserError: files and index do not belong together, a tensor is stored twice, or in a dtype that is not trained.
    """

    def __init__(self, path: str | Path, tied: bool = False):
        self.path, self.tied = Path(path), tied
        self.headers = read_headers(self.path)
        self.outside: list[tuple[str, str]] = []  # (file, tensor) that are not the model's
        self._places: dict[str, Place] = {}
        self._files: dict[str, safe_open] = {}
        for file, header in self.headers.items():
            for tensor, stored in header.tensors.items():
                if not tensor.startswith(MODEL):
                    self.outside.append((file, tensor))
                    continue
                for name, place in _places_in(file, tensor, stored):
                    if name in self._places:
                        why = f"in {self._places[name].file} and in {file}"
                        raise UserError(f"{self.path} stores {name} twice", why, "copy the model folder again")
                    self._places[name] = place
        if self.tied and len({place.shape for place in self.places(EMBEDDING)}) > 1:
            raise UserError(
                f"{OUTPUT} in {self.path} has not the shape of {EMBEDDING}",
                "the config ties them",
                "use the config.json that belongs to these weights",
            )

    def names(self) -> set[str]:
        """Names of all tensors of the model proper."""
        return self._places.keys() - ({OUTPUT} if self.tied else set())

    def check_names(self, expected: set[str]) -> None:
        """Raises UserError unless `names` are the expected ones; logs how many tensors outside the model the folder has."""
        missing, unknown = sorted(expected - self.names()), sorted(self.names() - expected)
        if missing or unknown:
            parts = [(f"{len(some)} {kind}", some) for kind, some in (("missing", missing), ("unknown", unknown)) if some]
            told = "; ".join(f"{count}: {', '.join(some[:MAX_NAMES])}{', ...' if len(some) > MAX_NAMES else ''}" for count, some in parts)
            raise UserError(
                f"the tensors in {self.path} are not those of its config.json: {told}",
                "every tensor of the model is trained and exported, none is left out or made up",
                "use the config.json that belongs to these weights, or copy the model folder again",
            )
        if self.outside:
            log.info(
                "%d tensors outside the model, like %s, are not trained; an export carries them unchanged",
                len(self.outside),
                self.outside[0][1],
            )

    def check_tied(self) -> None:
        """Raises UserError when the config ties embedding and output weight and the folder stores two different ones. Reads both."""
        places = self.places(EMBEDDING) if self.tied else []
        if len(places) < 2:
            return
        for rows in zip(*(self.read(place).split(ROWS) for place in places)):
            if not torch.equal(*(part.float() for part in rows)):
                raise UserError(
                    f"{OUTPUT} in {self.path} differs from {EMBEDDING}",
                    "the config ties them (tie_word_embeddings), so one of the two would be lost",
                    'set "tie_word_embeddings": false in config.json if the model has its own output weight, or leave it out of the files',
                )

    def places(self, name: str) -> list[Place]:
        """Where the tensor is stored: one place, or two of a tied embedding. Raises UserError when there is none."""
        aliases = [name, OUTPUT] if self.tied and name == EMBEDDING else [name]
        if name not in self._places:
            raise UserError(
                f"tensor {name} is not in {self.path}", "every tensor of the model must be there", "copy the model folder again, complete"
            )
        return [self._places[alias] for alias in aliases if alias in self._places]

    def get(self, name: str) -> Tensor:
        """The tensor, on the CPU: a view of the mapped file. Raises UserError when there is none."""
        return self.read(self.places(name)[0])

    def read(self, place: Place) -> Tensor:
        stored = self._file(place.file).get_tensor(place.tensor)
        return stored.view(-1)[place.first : place.first + prod(place.shape)].view(place.shape)

    def _file(self, name: str):
        if name not in self._files:
            try:
                self._files[name] = safe_open(self.path / name, "pt")
            except (OSError, SafetensorError) as error:
                raise UserError(f"cannot read {self.path / name}", str(error), "copy the model folder again, complete") from error
        return self._files[name]


def _places_in(file: str, tensor: str, stored: Stored) -> Iterator[tuple[str, Place]]:
    """The tensors inside a stored one: itself, or the experts' matrices of a fused one."""
    prefix, _, last = tensor.rpartition(".")
    if not prefix.endswith(".mlp.experts") or last not in _FUSED or len(stored.shape) != 3:
        yield tensor, Place(file, tensor, stored.shape, 0, stored.begin)
        return
    parts, (num_experts, rows, columns) = _FUSED[last], stored.shape
    shape = (rows // len(parts), columns)
    for expert in range(num_experts):
        for number, part in enumerate(parts):
            first = (expert * rows + number * shape[0]) * columns
            yield f"{prefix}.{expert}.{part}.weight", Place(file, tensor, shape, first, stored.begin + first * stored.item_bytes)
