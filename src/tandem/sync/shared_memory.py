"""Where files in shared memory lie and how those of a run are named. No torch."""

from glob import escape
from pathlib import Path

from blake3 import blake3

SHARED_MEMORY = Path("/dev/shm")


def shared_memory_prefix(run_dir: Path) -> str:
    """Starts the names of all files of ours in shared memory that a run makes: `<prefix>-<pid>-<n>`."""
    return f"tandem-{blake3(str(run_dir.resolve()).encode()).hexdigest(8)}"


def cleanup(prefix: str, directory: str | Path = SHARED_MEMORY) -> int:
    """Remove every bucket file of `prefix`, whoever wrote it. Returns how many there were; calling it again is harmless."""
    paths = list(Path(directory).glob(f"{escape(prefix)}-*"))
    for path in paths:
        path.unlink(missing_ok=True)
    return len(paths)
