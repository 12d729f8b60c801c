"""How often rows of each source come: `data.weights`."""

from collections import Counter
from collections.abc import Sequence

from tandem.errors import UserError


def parse_weights(entries: Sequence[str], sources: Sequence[str]) -> dict[str, float]:
    """`["geo3k=2", "gsm8k=1"]` -> weights by source; {} for none: rows then come as often as they are.

    Args:
        sources: the data source of each row.

    Raises:
        UserError: an entry of another form, a weight that is not positive, or sources that the rows do not have, or have besides.
    """
    there, weights = Counter(sources), dict[str, float]()
    for entry in entries:
        name, equals, text = entry.rpartition("=")
        try:
            weight = float(text)
        except ValueError:
            weight = 0.0
        if not equals or not 0 < weight < float("inf") or name in weights:
            raise UserError(
                f"data.weights holds {entry!r}", "an entry is SOURCE=WEIGHT, each source once", 'for example ["geo3k=2","gsm8k=1"]'
            )
        weights[name] = weight
    if weights and weights.keys() != there.keys():
        missing, unknown = sorted(there.keys() - weights.keys()), sorted(weights.keys() - there.keys())
        what = f"no weight for {missing[0]!r}" if missing else f"a weight for {unknown[0]!r}, which no row has"
        known = ", ".join(f"{name or '(none)'}: {count} rows" for name, count in sorted(there.items()))
        raise UserError(f"data.weights has {what}", f"sources of the training rows: {known}", "give each source a weight, or none at all")
    return weights


def shares(num_rows: int, weights: dict[str, float]) -> dict[str, int]:
    """How many of an epoch's `num_rows` rows come from each source: the weights' shares, rounded so that they add up."""
    total = sum(weights.values())
    exact = {name: num_rows * weight / total for name, weight in weights.items()}
    counts = {name: int(value) for name, value in exact.items()}
    for name in sorted(exact, key=lambda name: counts[name] - exact[name])[: num_rows - sum(counts.values())]:
        counts[name] += 1
    return counts
