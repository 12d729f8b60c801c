"""Checksums of files, and waiting until they are on the disk."""

import os
from pathlib import Path

from blake3 import blake3


def file_digest(path: Path) -> str:
    """blake3 of a file's bytes, once they are on the disk."""
    sync_path(path)
    return blake3(max_threads=1).update_mmap(path).hexdigest()


def sync_path(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
