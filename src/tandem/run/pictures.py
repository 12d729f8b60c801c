"""`rollouts/images/`: the pictures of the rows that were sampled, each once, within a limit of bytes.

A small file is kept as it is. Of a large one a smaller copy is made, and of few a step, so that a step does not wait for it.
"""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from blake3 import blake3

from tandem.data.images import decode_rgb

FOLDER = "images"
KEPT_AS_IT_IS = 128 << 10  # bytes
LONGEST_SIDE = 768  # pixels of a smaller copy
COPIES_A_STEP = 32
_MAGIC = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpg", b"GIF8": "gif"}  # what browsers show, by the first bytes


class ImageStore:
    """Args: limit_bytes: of the whole folder; 0: nothing is kept."""

    def __init__(self, run_dir: str | Path, limit_bytes: int):
        self.folder, self._limit = Path(run_dir) / "rollouts" / FOLDER, limit_bytes
        files = list(self.folder.iterdir()) if self.folder.is_dir() else []
        self._names = {file.stem: file.name for file in files}  # digest -> name
        self._bytes = sum(file.stat().st_size for file in files)
        self._copies_left = COPIES_A_STEP

    def begin_step(self) -> None:
        self._copies_left = COPIES_A_STEP

    def keep(self, images: Sequence[bytes]) -> list[str | None]:
        """The names of some encoded images, written when they are new; None for one that is not kept: this step or at all."""
        return [self._keep(data) for data in images] if self._limit else [None] * len(images)

    def _keep(self, data: bytes) -> str | None:
        digest = blake3(data).hexdigest(16)
        if digest in self._names:
            return self._names[digest]
        kind = kind_of(data)
        if len(data) > KEPT_AS_IT_IS or not kind:
            if not self._copies_left:
                return None
            self._copies_left -= 1
            data, kind = smaller_copy(data), "webp"
        if self._bytes + len(data) > self._limit:
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"{digest}.{kind}"
        (self.folder / name).write_bytes(data)
        self._names[digest], self._bytes = name, self._bytes + len(data)
        return name


def kind_of(data: bytes) -> str:
    """The ending of a file that browsers show, from its first bytes; empty for another."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), "")


def smaller_copy(data: bytes) -> bytes:
    """WebP with sides of at most `LONGEST_SIDE`, of the pixels that the model sees. Raises one of `data.images.BROKEN`."""
    image = decode_rgb(data)
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    buffer = BytesIO()
    image.save(buffer, "WEBP", quality=80, method=2)
    return buffer.getvalue()
