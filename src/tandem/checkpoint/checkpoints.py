"""Writing a run's checkpoints: beside, synced, a manifest with checksums last, then the name. `config/checkpointfolder.py` reads them."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tandem.config.checkpointfolder import FOLDER, FORMAT, MANIFEST, REFERENCE, STATE, STEP, checkpoints_in, newest_in, step_of
from tandem.errors import RunError, cannot_write
from tandem.sync.digest import file_digest, sync_path


def write(final: Path, state: Mapping[str, Any] | None, save: Callable[[Path], dict[str, str]]) -> Path:
    """`begin`, `save` and `complete` in one.

    Args:
        save: writes files into a folder, and returns each one's path in it and its blake3, as its writer saw them.
    """
    begin(final)
    return complete(final, state, lambda: save(beside(final)))


def beside(final: Path) -> Path:
    """Where `final` is made."""
    return final.with_name(final.name + ".tmp")


def begin(final: Path) -> None:
    """Make the folder beside `final` into which its files are written. Raises RunError: the disk is full, gone or read-only."""
    try:
        shutil.rmtree(beside(final), ignore_errors=True)
        final.parent.mkdir(exist_ok=True)  # not its parents: a run whose folder was removed must not go on in a new one
        beside(final).mkdir()
    except OSError as error:
        raise cannot_write(final, error, "checkpoint") from error


def complete(final: Path, state: Mapping[str, Any] | None, files: Callable[[], dict[str, str]]) -> Path:
    """Make of what lies beside it the folder `final`, whole once it has that name; one of that name before is replaced.

    Args:
        state: goes to state.json; None: no such file.
        files: path and blake3 of each file that was written beside, once all of them are.

    Raises:
        RunError: the disk is full or gone, or is not shared by all nodes. What was written is removed.
    """
    folder, before = beside(final), final.with_name(final.name + ".old")
    try:
        digests = files()
        if state is not None:
            (folder / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
            digests = digests | {STATE: file_digest(folder / STATE)}
        _check_all_there(folder, digests)
        told = {name: {"bytes": (folder / name).stat().st_size, "blake3": digest} for name, digest in sorted(digests.items())}
        (folder / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": told}, indent=1), encoding="utf-8")
        for path in (folder / MANIFEST, *(path for path in folder.rglob("*") if path.is_dir()), folder):
            sync_path(path)
        if final.exists():
            os.replace(final, before)
        os.replace(folder, final)
        sync_path(final.parent)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise cannot_write(final, error, "checkpoint") from error
    except RunError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(before, ignore_errors=True)
    return final


def _check_all_there(folder: Path, digests: Mapping[str, str]) -> None:
    here = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    if missing := sorted(digests.keys() - here):
        raise RunError(
            f"{len(missing)} files of the checkpoint are not in {folder}: {missing[0]}, ...",
            "another node wrote them to a disk of its own",
            "set run_dir to a folder on a file system that every node mounts",
        )
    assert here == digests.keys(), f"files nobody has written: {sorted(here - digests.keys())}"


def steps_in(run_dir: Path) -> list[int]:
    """Steps of the run's checkpoints, in order."""
    return [step_of(path) for path in checkpoints_in(run_dir)]


def set_aside(run_dir: Path, after: int) -> list[int]:
    """Rename checkpoints of later steps, which are of another course of the run, to step_<n>.aside; returns their steps."""
    later = [path for path in checkpoints_in(run_dir) if step_of(path) > after]
    for path in later:
        aside = path.with_name(path.name + ".aside")
        shutil.rmtree(aside, ignore_errors=True)
        os.replace(path, aside)
    return [step_of(path) for path in later]


def prune(run_dir: Path, *, keep_last: int, keep_every: int, best: int | None) -> list[int]:
    """Remove checkpoints, and return their steps: all but the last `keep_last`, each multiple of `keep_every`, and `best`. 0: keeps all."""
    if not keep_last:
        return []
    steps = steps_in(run_dir)
    kept = {*steps[-keep_last:], *(step for step in steps if keep_every and step % keep_every == 0), best}
    gone = [step for step in steps if step not in kept]
    for step in gone:
        folder = run_dir / FOLDER / f"step_{step:06d}"
        os.replace(folder, folder.with_name(folder.name + ".old"))  # a half-removed one must not look like a checkpoint
        shutil.rmtree(folder.with_name(folder.name + ".old"), ignore_errors=True)
    return gone


def remove_leftovers(run_dir: Path) -> None:
    """What a killed run left behind: half-written and half-removed folders. One that was to be replaced and was not gets its name back."""
    for path in _ours(run_dir, ".old"):
        final = path.with_name(path.stem)
        newest = newest_in(run_dir)
        if final.exists() or (newest and STEP.fullmatch(final.name) and step_of(final) < step_of(newest)):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.replace(path, final)
    for path in _ours(run_dir, ".tmp"):
        shutil.rmtree(path, ignore_errors=True)


def _ours(run_dir: Path, suffix: str) -> list[Path]:
    """Folders of that suffix that a run has made; others are their owner's."""
    return [path for path in (run_dir / FOLDER).glob(f"*{suffix}") if STEP.fullmatch(path.stem) or path.stem == REFERENCE]
