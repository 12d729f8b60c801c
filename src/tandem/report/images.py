"""Pictures of rows as data URLs, each once, within a budget."""

import re
from base64 import b64encode
from pathlib import Path

MEDIA_TYPES = {"png": "image/png", "jpg": "image/jpeg", "gif": "image/gif", "webp": "image/webp"}
_NAME = re.compile(r"[0-9a-f]{32}\.(png|jpg|gif|webp)", re.ASCII)  # as run/pictures.py writes them


class Pictures:
    """Args: limit_bytes: of all files taken."""

    def __init__(self, run_dir: Path, limit_bytes: int):
        self.data_urls: dict[str, str] = {}
        self._folder, self._left = run_dir / "rollouts" / "images", limit_bytes

    def take(self, name: str) -> bool:
        """Whether the picture is on the page."""
        if name in self.data_urls:
            return True
        file = self._folder / name
        if not _NAME.fullmatch(name) or not file.is_file() or file.stat().st_size > self._left:
            return False
        data = file.read_bytes()
        self._left -= len(data)
        self.data_urls[name] = f"data:{MEDIA_TYPES[file.suffix[1:]]};base64,{b64encode(data).decode()}"
        return True
