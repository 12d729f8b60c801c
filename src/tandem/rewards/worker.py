"""One grading process: `python -m tandem.rewards.worker NAME PARENT_PID`. Reads (text, ground truth) from stdin, writes grades to stdout.

It may hang or die at any item; `pool.py` kills and replaces it. It ends by itself when its parent does.
"""

import ctypes
import os
import resource
import signal
import sys
import traceback
from dataclasses import asdict

from tandem.rewards import get
from tandem.rewards.wire import receive, send

MEMORY_LIMIT_BYTES = 2 << 30  # address space; sympy itself needs 0.3 GiB, 9**9**9 would need all there is
_PR_SET_PDEATHSIG = 1


def main(name: str, parent: int) -> None:
    die_with_parent(parent)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints goes to stderr, not between the messages
    grade = get(name)
    grade("\\boxed{2x}", "x+x")  # the first call is slow: it fills sympy's caches, before any time limit runs
    send(replies, "ready")
    while True:
        try:
            text, ground_truth = receive(requests)
        except EOFError:
            return
        try:
            reply = asdict(grade(text, ground_truth))
        except Exception:  # noqa: BLE001 - process edge: the pool says it
            reply = {"traceback": traceback.format_exc()}
        send(replies, reply)


def die_with_parent(parent: int) -> None:
    """SIGKILL when the parent ends, also in the middle of an item, where no end of file is seen. Linux only; elsewhere the pipe must do.

    The kernel means the parent's thread that started this process; `pool.py` starts it from the thread that grades.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
