"""What a killed command leaves is ended by its janitor, and by nobody when it ends as it should."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tandem.actors.janitor import RUN, processes_of
from tandem.sync.shared_memory import SHARED_MEMORY, shared_memory_prefix

COMMAND = """
import os, subprocess, sys, time
from pathlib import Path
from tandem.actors.janitor import RUN, Janitor
from tandem.sync.shared_memory import SHARED_MEMORY, shared_memory_prefix

run_dir = Path(sys.argv[1])
janitor = Janitor(run_dir)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
bucket = SHARED_MEMORY / f"{shared_memory_prefix(run_dir)}-{child.pid}-0"
bucket.write_bytes(b"weights")
sys.stdout.write(f"{os.environ[RUN]} {child.pid} {janitor._process.pid}\\n")
sys.stdout.flush()
if sys.argv[2] == "killed":
    time.sleep(600)
janitor.dismiss()
"""


def command(run_dir: Path, ending: str) -> tuple[subprocess.Popen, str, psutil.Process, psutil.Process]:
    """A command, its run, a process that it started, and its janitor."""
    (run_dir / "logs").mkdir(parents=True)
    process = subprocess.Popen([sys.executable, "-c", COMMAND, str(run_dir), ending], stdout=subprocess.PIPE, text=True)
    run, child, janitor = process.stdout.readline().split()
    return process, run, psutil.Process(int(child)), psutil.Process(int(janitor))


def test_processes_and_files_of_a_killed_command_are_gone(tmp_path: Path) -> None:
    process, run, child, janitor = command(tmp_path / "run", "killed")
    of_another = SHARED_MEMORY / f"{shared_memory_prefix(tmp_path / 'run')}-{os.getpid()}-0"  # a new run in the same folder, which lives
    of_another.write_bytes(b"weights")
    try:
        assert RUN not in janitor.environ(), "it would end itself"
        assert [found.pid for found in processes_of(run)] == [child.pid]
        process.send_signal(signal.SIGKILL)
        process.wait()
        psutil.wait_procs([child, janitor], timeout=30)
        assert not child.is_running() and not janitor.is_running()
        assert list(SHARED_MEMORY.glob(f"{shared_memory_prefix(tmp_path / 'run')}-*")) == [of_another]
    finally:
        of_another.unlink()


def test_a_command_that_ends_as_it_should_dismisses_it(tmp_path: Path) -> None:
    process, _, child, janitor = command(tmp_path / "run", "dismissed")
    try:
        assert process.wait(30) == 0
        psutil.wait_procs([janitor], timeout=10)
        time.sleep(0.5)
        assert child.is_running() and not janitor.is_running()
    finally:
        child.kill()
        for path in SHARED_MEMORY.glob(f"{shared_memory_prefix(tmp_path / 'run')}-*"):
            path.unlink()
