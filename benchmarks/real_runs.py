"""Real runs of the demo as other processes: started with a mark that all their processes inherit, waited for, and looked for remains."""

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tandem.sync.shared_memory import SHARED_MEMORY, shared_memory_prefix
from tests.run.marked import MARK, command_of, marked


def start(run_dir: Path, mark: str, settings: Iterable[str], output: Path, errors: Path | None = None) -> subprocess.Popen:
    """`tandem train demo`; what it shows is added to `output`, and its errors to `errors` where they are wanted apart."""
    command = [sys.executable, "-m", "tandem", "train", "demo", f"run_dir={run_dir}", *settings]
    with output.open("ab") as out, (errors or output).open("ab") as err:
        return subprocess.Popen(command, stdout=out, stderr=err, env=os.environ | {MARK: mark}, start_new_session=True)


def wait(process: subprocess.Popen, mark: str, limit_s: float) -> int:
    """Its exit code; a run that hangs is killed."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        for one in marked(mark):
            one.kill()
        return process.wait()


def left_behind(mark: str, files: set[Path], run_dir: Path) -> list[str]:
    """Processes that still run 10 seconds later, which are ended, and what is left in shared memory, of `files` too."""
    ends = time.monotonic() + 10
    while (processes := marked(mark)) and time.monotonic() < ends:
        time.sleep(0.2)
    left = [command_of(process)[:60] for process in processes]
    for process in processes:
        process.kill()
    files = files | set(SHARED_MEMORY.glob(f"{shared_memory_prefix(run_dir)}-*"))
    return left + [path.name for path in files if path.exists()]
