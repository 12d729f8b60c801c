"""`logs/notes.jsonl`: what a run said about choices and events, one JSON object a line: `time` (seconds since 1970) and `text`."""

import json
import time
from pathlib import Path

from tandem.errors import UserError
from tandem.secrets import without_secrets

FILE_NAME = "notes.jsonl"


def append_note(run_dir: Path, text: str) -> None:
    folder = run_dir / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILE_NAME).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": time.time(), "text": without_secrets(text)}) + "\n")


def read_notes(run_dir: Path) -> list[str]:
    """The texts in order. A last line without its end is not one. Raises UserError for a line that is no note."""
    file = run_dir / "logs" / FILE_NAME
    lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.is_file() else []
    try:
        return [str(json.loads(line)["text"]) for line in lines]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} has a line that is no note", str(error), "restore the file, or remove that line") from error
