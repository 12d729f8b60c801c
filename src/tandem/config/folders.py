"""Folders outside a run."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """Where Tandem keeps what can be made again: $XDG_CACHE_HOME/tandem, usually ~/.cache/tandem."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem"
