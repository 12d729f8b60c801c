"""What a grading process does: reads lists of items, writes lists of grades.

The first grader's grades are the items', the others' scores stand beside them. It may hang or die at any item; `pool.py` replaces it.
"""

import os
import resource
import signal
import traceback
from dataclasses import asdict, replace
from typing import Any

from tandem.rewards.graders import Grader, load
from tandem.rewards.types import Grade, Item
from tandem.rewards.wire import receive, send


def serve(requests_fd: int, replies_fd: int, names: list[str], memory_limit_bytes: int) -> None:
    """Until the requests end. First comes one message of its own: how many items it takes at once, or why it cannot grade."""
    if memory_limit_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes, memory_limit_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()  # what a grader starts is killed with it
    pid = os.getpid()
    with os.fdopen(requests_fd, "rb") as requests, os.fdopen(replies_fd, "wb") as replies:
        try:
            graders = {name: load(name) for name in names}
        except Exception:  # noqa: BLE001 - process edge: the pool says it
            send(replies, {"failure": traceback.format_exc()})
            return
        each = graders.values()
        at_once, concurrent = any(g.at_once for g in each), all(g.concurrent or not g.at_once for g in each)
        send(replies, {"pid": os.getpid(), "at_once": at_once, "concurrent": at_once and concurrent})
        while True:
            try:
                items = [Item(*fields) for fields in receive(requests)]
            except EOFError:
                return
            grades = grade_all(graders, items)
            if os.getpid() != pid:  # a grader forked and its child came back: only one may answer
                os._exit(1)
            send(replies, grades)


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
