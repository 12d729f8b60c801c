"""What a grader is given and what it says."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Item(NamedTuple):
    """One response to grade."""

    text: str  # the assistant's whole turn, what the chat template opened of it included
    ground_truth: str
    data_source: str = ""
    prompt: str = ""  # the user's last message
    extra_info: dict[str, Any] = {}  # noqa: RUF012 - as the row has it


@dataclass(frozen=True)
class Grade:
    """Scores, between 0 and 1 from our own graders. `reason` is one word for tables: `correct`, `wrong`, `no_box`, `timeout`, ...

    A grader without a notion of form repeats its score as `format`.
    """

    accuracy: float
    format: float
    reason: str
    also: dict[str, float] = field(default_factory=dict)  # scores of the graders in reward.also, by their names
    # what was taken for the answer, in one spelling, for votes; None: there was none, or the grader has no such notion. No verdict.
    answer: str | None = field(default=None, compare=False)
