"""A small process beside the command. When that is killed (`kill -9`, out of memory), it ends what is left: Ray's processes, ours, and
their shared memory. Some of Ray's live on for minutes otherwise.
"""

import os
import subprocess
import sys
import uuid
from pathlib import Path

RUN = "TANDEM_RUN"  # in the environment of every process of a run


class Janitor:
    """From the first process of the run to `dismiss`. It reads from a pipe that ends with this process; Ctrl-C does not reach it."""

    def __init__(self, run_dir: Path):
        environment = {name: value for name, value in os.environ.items() if name != RUN}
        os.environ[RUN] = run = uuid.uuid4().hex
        command = [sys.executable, "-m", "tandem.actors.janitor", run, str(run_dir)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, env=environment
        )

    def dismiss(self) -> None:
        """The run's processes have been ended."""
        os.environ.pop(RUN, None)
        try:
            self._process.communicate(b"nothing is left")
        except BrokenPipeError:  # it was killed
            self._process.wait()


def sweep(run: str, run_dir: str) -> None:
    """Kill the processes of the run and remove the shared memory that they and killed ones had.

    A new run in the same folder may have begun: files of processes that live are not touched.
    """
    import psutil

    from tandem.actors import remains
    from tandem.actors.processes import end, shared_memory_of
    from tandem.sync.shared_memory import SHARED_MEMORY, shared_memory_prefix

    files: set[Path] = set()
    while left := processes_of(run):  # one may have been starting another
        files |= shared_memory_of(left)
        for process in left:
            process.kill()
        end(left, grace_s=5)
    for path in SHARED_MEMORY.glob(f"{shared_memory_prefix(Path(run_dir))}-*"):
        pid = path.name.split("-")[2]
        if not pid.isdecimal() or not psutil.pid_exists(int(pid)):
            files.add(path)
    for path in files:
        path.unlink(missing_ok=True)
    remains.remove(Path(run_dir))


def processes_of(run: str, variable: str = RUN) -> list:
    """Those that have inherited the run's mark, and are no zombies."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(variable) == run and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:  # ended, or another user's
            continue
    return found


if __name__ == "__main__":
    if not sys.stdin.buffer.read():  # the command is gone without a word
        sweep(*sys.argv[1:])
