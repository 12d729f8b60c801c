"""Standard output for a result, and for nothing else."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def result_stream(as_json: bool) -> Iterator[TextIO]:
    """Standard output; for JSON kept apart, while all else (worker processes too) that writes there goes to standard error."""
    if not as_json:
        yield sys.stdout
        return
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as result:
        os.dup2(2, 1)
        yield result
