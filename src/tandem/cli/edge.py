"""The edge of the process: every way a command can end becomes an exit code and at most one message."""

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from tandem.config.folders import cache_dir
from tandem.errors import RunError, UserError
from tandem.secrets import without_secrets

STOPPED = 3
_CTRL_C = 130  # typer's code for a KeyboardInterrupt it met outside our code
_run_dir: Path | None = None  # of the one command this process runs, once it is known


def log_into(run_dir: Path) -> None:
    """Tracebacks go to this run's logs/ from now on."""
    global _run_dir
    _run_dir = run_dir


def run(command: Callable[[], object]) -> int:
    """Call `command` and return the process's exit code: 0, 1 (fault of the run), 2 (input or environment), 3 (stopped by a signal)."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        _check_folder()
        command()
    except UserError as error:
        _say(str(error))
        _write_traceback()
        return error.exit_code
    except RunError as error:
        _say(f"{error}\n  log: {_write_traceback()}")
        return error.exit_code
    except KeyboardInterrupt as stop:
        _say(": ".join(["stopped", *map(str, stop.args)]))
        return STOPPED
    except BrokenPipeError:
        return _reader_gone()
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # typer and rich make a 1 of it
            return _reader_gone()
        if reasons := _reasons_of_stop(stop):
            _say(": ".join(["stopped", *reasons]))
        # Ray's own handler turns SIGTERM into sys.exit(15).
        return (
            STOPPED if stop.code in (_CTRL_C, signal.SIGTERM) else stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        )
    except Exception as error:  # noqa: BLE001 - the process edge: whatever is left is a bug, and its traceback is in the log
        _say(f"unexpected {type(error).__name__}: {' '.join(str(error).split())}\n  log: {_write_traceback()}")
        return 1
    return 0


def _check_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UserError("the folder you are in has been removed", "paths of files and runs begin there", "cd to one that exists") from error


def _reasons_of_stop(stop: BaseException | None) -> list[str]:
    """What the KeyboardInterrupt behind typer's exit code says."""
    while stop is not None and not isinstance(stop, KeyboardInterrupt):
        stop = stop.__context__
    return [str(reason) for reason in stop.args] if stop else []


def _reader_gone() -> int:
    """`tandem plan demo | head -3`: what was asked for has been read. Whatever is still in Python's buffer has nowhere to go."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    return STOPPED


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(message: str) -> None:
    sys.stderr.write(f"tandem: {without_secrets(message)}\n")


def _write_traceback() -> Path:
    """Write the exception being handled to the run's logs/error.log; before there is a run, to a file in the user's cache."""
    told = without_secrets(traceback.format_exc())
    folder = _run_dir / "logs" if _run_dir and _run_dir.is_dir() else cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "error.log"
        path.write_text(told, encoding="utf-8")
    except OSError:  # a full or read-only disk must not hide the fault itself
        descriptor, name = tempfile.mkstemp(prefix="tandem-error-", suffix=".log")
        path = Path(name)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(told)
    return path
