"""One grading process: `python -m tandem.rewards.worker PARENT_PID MEMORY_BYTES NAME...`.

Reads lists of items from stdin, writes lists of grades to stdout. The first grader's grades are the items', the others' scores stand beside
them. It may hang or die at any item; `pool.py` kills and replaces it. It ends by itself when its parent does.
"""

import ctypes
import os
import resource
import signal
import sys
from dataclasses import asdict, replace
from typing import Any

from tandem.rewards.graders import Grader, load
from tandem.rewards.types import Grade, Item
from tandem.rewards.wire import receive, send

_PR_SET_PDEATHSIG = 1


def main(parent: int, memory_limit_bytes: int, names: list[str]) -> None:
    die_with_parent(parent)
    if memory_limit_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes, memory_limit_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints goes to stderr, not between the messages
    graders = {name: load(name) for name in names}
    if names[0] in ("geo3k", "math"):
        graders[names[0]]([Item("\\boxed{2x}", "x+x")])  # the first call is slow: it fills sympy's caches, before any time limit runs
    each = graders.values()
    send(replies, {"at_once": any(g.at_once for g in each), "concurrent": all(g.concurrent or not g.at_once for g in each)})
    while True:
        try:
            items = [Item(*fields) for fields in receive(requests)]
        except EOFError:
            return
        send(replies, grade_all(graders, items))


def grade_all(graders: dict[str, Grader], items: list[Item]) -> list[dict[str, Any]]:
    """A grade for each item, or {"traceback": text} where a grader raised."""
    first, *others = graders
    grades, replies = graders[first](items), []
    also = {name: graders[name](items) for name in others}
    for index, grade in enumerate(grades):
        of_others = {name: found[index] for name, found in also.items()}
        failed = next((told for told in (grade, *of_others.values()) if isinstance(told, str)), None)
        if failed is not None:
            replies.append({"traceback": failed})
            continue
        assert isinstance(grade, Grade)
        scores = {name: other.accuracy for name, other in of_others.items() if isinstance(other, Grade)}
        replies.append(asdict(replace(grade, also=scores)))
    return replies


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
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
