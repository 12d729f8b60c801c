"""verl's names beside ours, from `config/reference_table.py`."""

from docs.generate.messages import cell
from tandem.config.reference_table import ALWAYS, FOLLOWS, NO_COUNTERPART, RENAMED, SWITCHES, VALUES


def tables() -> str:
    """What has another name, another value, one setting instead of two, no choice, no counterpart."""
    parts = [
        _table(
            "Other names",
            ("verl", "here"),
            [(f"`{theirs}`", ", ".join(f"`{ours}`" for ours in keys)) for theirs, keys in RENAMED.items()]
            + [
                (f"`{theirs}`", f"`{switch.key}`: 0 when {switch.zero_when}, else the number ({switch.otherwise})")
                for theirs, switch in SWITCHES.items()
            ],
        ),
        _table(
            "Other values",
            ("setting here", "verl: here"),
            [(f"`{key}`", ", ".join(f"`{theirs}`: `{ours}`" for theirs, ours in values.items())) for key, values in VALUES.items()],
        ),
        _table("One setting for both", ("verl", "must agree with"), [(f"`{theirs}`", f"`{ours}`") for theirs, ours in FOLLOWS.items()]),
        _table(
            "Always so", ("verl", "only", "because"), [(f"`{name}`", f"`{values[0]}`", cell(why)) for name, (values, why) in ALWAYS.items()]
        ),
        _table(
            "No counterpart",
            ("verl", "instead"),
            [(f"`{name}{'*' * (name[-1] in '._')}`", cell(why)) for name, why in NO_COUNTERPART.items()],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    head = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return "\n".join([f"## {title}", "", *head, *(f"| {' | '.join(row)} |" for row in rows)])
