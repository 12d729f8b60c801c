"""The run's folder: made, kept for one run at a time, and the resolved config written."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tandem.config.checkpointfolder import FOLDER
from tandem.config.load import resolved_yaml
from tandem.config.schema import Config
from tandem.errors import UserError
from tandem.secrets import without_secrets


@contextmanager
def only_run_in(run_dir: Path) -> Iterator[None]:
    """Make the folder and keep other runs out of it; the lock ends with this process, however it ends.

    Raises:
        UserError: the folder cannot be written, or another run is using it now.
    """
    try:
        (run_dir / "logs").mkdir(parents=True, exist_ok=True)
        lock = (run_dir / "logs" / "lock").open("w")
    except OSError as error:
        raise UserError(f"the run's folder {run_dir} cannot be written", str(error), "set run_dir to a folder you can write") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"another run is using {run_dir}", "two runs in one folder would mix their records and weights", "set another run_dir"
            ) from error
        yield


def begin(config: Config, device: str) -> tuple[Config, Path]:
    """Write config.yaml, without secrets, into `config.run_dir`, which exists.

    Returns:
        The config with the device that was found, and the folder.

    Raises:
        UserError: it, or a folder in it, cannot be written.
    """
    config = config.model_copy(update={"device": device})
    run_dir = Path(config.run_dir).resolve()
    for name in (FOLDER, "rollouts", "logs", "export"):
        _check_folder(run_dir / name)
    try:
        (run_dir / "config.yaml").write_text(resolved_yaml(without_secrets(config.model_dump(mode="json"))))
    except OSError as error:
        raise UserError(f"{run_dir / 'config.yaml'} cannot be written", str(error), "make room, or set another run_dir") from error
    return config, run_dir


def _check_folder(path: Path) -> None:
    """Raises UserError when what is written at the end of a step, or of the run, would find something else there."""
    if (path.exists() or path.is_symlink()) and not (path.is_dir() and os.access(path, os.W_OK)):
        why = "it cannot be written" if path.is_dir() else "it is no folder"
        raise UserError(f"{path} is in the way: {why}", "the run writes into a folder of this name", "move it away, or set another run_dir")


def write_plan(run_dir: Path, plan: dict[str, Any]) -> None:
    """plan.json. Raises UserError when it cannot be written."""
    try:
        (run_dir / "plan.json").write_text(json.dumps(plan, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"{run_dir / 'plan.json'} cannot be written", str(error), "make room, or set another run_dir") from error
