"""How far a piece of work is: whoever does it calls a function with (done, in all)."""

from collections.abc import Callable

Progress = Callable[[int, int], None]


def unseen(done: int, total: int) -> None:
    """The progress that nobody looks at."""


def part_of(progress: Progress, number: int, of: int) -> Progress:
    """For the piece of this number, from 0, of `of` equal pieces."""
    return lambda done, total: progress(number * total + done, of * total)
