"""End processes, and find the shared memory that a killed one leaves behind."""

from collections.abc import Iterable
from pathlib import Path

import psutil

from tandem.sync.shared_memory import SHARED_MEMORY


def end(processes: list[psutil.Process], grace_s: float) -> None:
    """Wait for the processes, and kill those that still run after `grace_s` seconds."""
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=5)


def has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def shared_memory_of(processes: Iterable[psutil.Process]) -> set[Path]:
    """Named segments of the processes: vLLM's workers exchange tensors in some, and one that is killed leaves them behind.

    They are what is mapped, and joblib's semaphores, which are mapped under another name.
    """
    found: set[Path] = set()
    for process in processes:
        try:
            maps = Path(f"/proc/{process.pid}/maps").read_text()
        except OSError:  # it has ended
            continue
        paths = (line.split(maxsplit=5)[-1] for line in maps.splitlines() if str(SHARED_MEMORY) in line)
        found |= {Path(path) for path in paths if not path.endswith("(deleted)")}
        found |= set(SHARED_MEMORY.glob(f"sem.loky-{process.pid}-*"))
    return found


Identity = tuple[int, float]  # pid and when it was created: a pid alone may be another process by now


def family() -> list[Identity]:
    """This process and its descendants."""
    me = psutil.Process()
    return [(process.pid, process.create_time()) for process in (me, *me.children(recursive=True))]


def find(identity: Identity) -> psutil.Process | None:
    """The process, unless it has ended."""
    pid, created = identity
    try:
        process = psutil.Process(pid)
        return process if process.create_time() == created else None
    except psutil.NoSuchProcess:
        return None


def kill_family(identities: list[Identity]) -> None:
    """Kill them, stopped ones too; those that have ended are no error."""
    alive = [process for identity in identities if (process := find(identity))]
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=10)
