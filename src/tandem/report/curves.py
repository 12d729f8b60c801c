"""Metrics over steps, no more points than a screen shows."""

from collections.abc import Sequence

from tandem.report.runs import Metrics

Point = tuple[float, float | None]
MOST_POINTS = 1000  # of one curve


def curves_of(rows: Sequence[Metrics]) -> dict[str, list[Point]]:
    """Metric -> its (step, value) in order. A step without the metric is passed over; null (no finite number) stays, as a gap."""
    curves: dict[str, list[Point]] = {}
    for row in rows:
        for name, value in row.items():
            if name != "step":
                curves.setdefault(name, []).append((row.get("step") or 0, value))
    return {name: thinned(points) for name, points in curves.items()}


def thinned(points: list[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most `most` points: of each of as many equal stretches as needed the lowest and the highest stay, so that no peak is lost."""
    if len(points) <= most:
        return points
    kept: list[Point] = []
    count = most // 2
    for number in range(count):
        stretch = points[number * len(points) // count : (number + 1) * len(points) // count]
        known = [point for point in stretch if point[1] is not None]
        ends = {min(known, key=_value), max(known, key=_value)} if known else {stretch[0]}
        kept += [point for point in stretch if point in ends]
    return kept


def _value(point: Point) -> float:
    return point[1] or 0.0
