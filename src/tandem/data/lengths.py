"""Lengths of prompts, remembered from run to run: a row with the same content, for the same processor, is as long as it was."""

import json
import os
import tempfile
from pathlib import Path

from blake3 import blake3

from tandem.data.types import Row


class LengthCache:
    """Args:
    folder: where it is kept; made when needed.
    fingerprint: of the processor and the template; another one has a file of its own.
    """

    def __init__(self, folder: Path, fingerprint: str):
        self._path = folder / f"{fingerprint}.json"
        self._changed = False
        try:
            self._lengths: dict[str, int] = json.loads(self._path.read_text())
        except (OSError, ValueError):  # not there, or cut off: it can be made again
            self._lengths = {}

    def get(self, row: Row) -> int | None:
        """Tokens of the row's whole prompt, None when it is not known."""
        return self._lengths.get(row_key(row))

    def put(self, row: Row, length: int) -> None:
        self._lengths[row_key(row)] = length
        self._changed = True

    def write(self) -> None:
        """Whole or not at all. A folder that cannot be written costs only the time of the next run."""
        if not self._changed:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False) as file:
                json.dump(self._lengths, file)
            os.replace(file.name, self._path)
        except OSError:
            return


def row_key(row: Row) -> str:
    """Of what the prompt is made of: messages and images."""
    digest = blake3(json.dumps(row.messages, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    for image in row.images:
        digest.update(len(image).to_bytes(8, "big") + image)
    return digest.hexdigest(16)
