"""Names to functions, with a helpful error for a name that is not there."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

from tandem.errors import UserError

T = TypeVar("T")


def find(kind: str, key: str, table: Mapping[str, T], name: str) -> T:
    """`table[name]`. Args: kind: what it is, for the message; key: the config key that holds the name.

    Raises:
        UserError: no such name; suggests the nearest.
    """
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, n=1)
    raise UserError(
        f"unknown {kind} {name!r}",
        f"there are: {', '.join(sorted(table))}",
        f"set {key}={near[0] if near else next(iter(table))}",
    )
