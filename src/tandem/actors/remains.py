"""Shared memory that a killed run leaves on a node: written down while it is made, removed when the next run in the same folder starts.

vLLM's workers exchange tensors in segments with names of their own making, which nobody could tell from those of other programs.
"""

import contextlib
import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path

import psutil

from tandem.actors.processes import find, shared_memory_of
from tandem.sync.shared_memory import SHARED_MEMORY

log = logging.getLogger(__name__)

_SECONDS = 0.5  # between two looks while segments are being made


@contextmanager
def noted(run_dir: Path) -> Iterator[None]:
    """Write down the segments of this process and its children, as they are made while this lasts."""
    done = threading.Event()
    thread = threading.Thread(target=_note_until, args=(run_dir, done), daemon=True, name="tandem-remains")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        _note(run_dir)


def remove(run_dir: Path) -> list[str]:
    """Remove the segments that processes which have ended have noted on this node; returns their names.

    Several generators of a node do this at the same time: what another has removed meanwhile is no error.
    """
    gone = []
    for record in (run_dir / "logs").glob(f"shared_memory_{escape(socket.gethostname())}_*.json"):
        with contextlib.suppress(FileNotFoundError):
            noted = json.loads(record.read_text())
            if find((noted["pid"], noted["created"])):
                continue
            for name, inode in noted["files"].items():
                gone += _removed(SHARED_MEMORY / name, inode)
            _forget(record)
    return gone


def _forget(record: Path) -> None:
    """A folder that has become read-only must not hide why the run ended; the next run in it reads the record again."""
    try:
        record.unlink()
    except FileNotFoundError:
        raise
    except OSError as error:
        log.warning("%s stays: %s", record, error)


def _removed(path: Path, inode: int) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_ino == inode:  # not one of the same name since
            path.unlink()
            return [path.name]
    return []


def _note_until(run_dir: Path, done: threading.Event) -> None:
    while not done.wait(_SECONDS):
        _note(run_dir)


def _note(run_dir: Path) -> None:
    me = psutil.Process()
    files = {}
    for path in shared_memory_of([me, *me.children(recursive=True)]):
        with contextlib.suppress(FileNotFoundError):  # its owner has removed it
            files[path.name] = path.stat().st_ino
    record = run_dir / "logs" / f"shared_memory_{socket.gethostname()}_{me.pid}.json"
    beside = record.with_suffix(".tmp")
    beside.write_text(json.dumps({"pid": me.pid, "created": me.create_time(), "files": files}), encoding="utf-8")
    os.replace(beside, record)
