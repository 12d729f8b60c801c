"""Peak memory of a call, for tests that a large thing is not held or read whole."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def _resident(field: str) -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field)]
    return int(line.split()[1]) << 10


def peak_growth(call: Callable[[], Any]) -> int:
    """Bytes by which this process's resident memory, pages of mapped files included, peaked over what it was before."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = _resident("VmRSS")
    result = call()
    peak = _resident("VmHWM")
    del result
    return peak - before
