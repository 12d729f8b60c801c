"""A grader behind an address: `reward.name=http://host:port/path`.

Each response is one POST of a JSON object with the fields of `Item`; the answer is what a user's function may return, as JSON: a number, or
an object with `score` (or `accuracy`), and if it likes `format`, `reason` and `answer`. The pool's time limit is the request's.
"""

import json
import urllib.request
from collections.abc import Callable

from tandem.rewards.types import Grade, Item
from tandem.rewards.user import as_grade


def grader(url: str) -> Callable[[Item], Grade]:
    """Asks `url`. What goes wrong with the connection or the answer raises, and counts as `failed`."""

    def grade(item: Item) -> Grade:
        body = json.dumps(item._asdict(), default=str).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return as_grade(json.load(answer))

    return grade
