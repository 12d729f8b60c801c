"""Charts as SVG text: no plotting package, no script, light and dark by the reader's preference."""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

Point = tuple[float, float | None]

WIDTH, HEIGHT = 480, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 52, 36  # margins around the plotted area
_STYLE = """<style>
.tandem-chart { --ink: #1f2328; --faint: #6e7781; --grid: #d8dee4;
  --c0: #0969da; --c1: #bc4c00; --c2: #1a7f37; --c3: #8250df; --c4: #bf3989; --c5: #9a6700; --c6: #57606a; }
@media (prefers-color-scheme: dark) {
.tandem-chart { --ink: #e6edf3; --faint: #8d96a0; --grid: #30363d;
  --c0: #4493f8; --c1: #f0883e; --c2: #3fb950; --c3: #ab7df8; --c4: #f778ba; --c5: #d29922; --c6: #afb8c1; } }
.tandem-chart text { font: 11px system-ui, sans-serif; fill: var(--faint); }
.tandem-chart text.title { font-size: 14px; font-weight: 600; fill: var(--ink); }
</style>"""
_COLOURS = 7
_NAMES_A_ROW = 6  # more than these stand in two rows


def line_chart(series: Mapping[str, Sequence[Point]], title: str, x_label: str = "step", log_y: bool = False) -> str:
    """An SVG document with one line a series.

    Args:
        series: name -> (x, y) points in order of x. A y of None, or of 0 and less on a logarithmic axis, is a gap in the line.
        log_y: logarithmic y axis.
    """
    clean = {name: [(x, _on_axis(y, log_y)) for x, y in points] for name, points in series.items()}
    xs = [x for points in clean.values() for x, y in points if y is not None]
    ys = [y for points in clean.values() for _, y in points if y is not None]
    if not ys:
        return _document(title, [f'<text x="{LEFT}" y="{HEIGHT / 2}">no values yet</text>'])
    x_ticks, y_ticks = _ticks(min(xs), max(xs)), _log_ticks(min(ys), max(ys)) if log_y else _ticks(min(ys), max(ys))
    x_of = _scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    y_of = _scale(min(*ys, *y_ticks), max(*ys, *y_ticks), HEIGHT - BOTTOM, TOP)
    body = [_grid_line(y_of(y), f"1e{y:g}" if log_y else f"{y:g}") for y in y_ticks]
    body += [_text(x_of(x), HEIGHT - BOTTOM + 16, f"{x:g}", "middle") for x in x_ticks if min(xs) <= x <= max(xs)]
    body.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x_label, "middle"))
    for number, (name, points) in enumerate(clean.items()):
        colour = f"var(--c{number % _COLOURS})"
        body += [_run([(x_of(x), y_of(y)) for x, y in run], colour) for run in _runs(points)]
        if len(clean) > 1:
            num_rows = 1 + (len(clean) > _NAMES_A_ROW)
            row, column = divmod(number, -(-len(clean) // num_rows))
            x, y = (
                LEFT + column * num_rows * (WIDTH - LEFT - RIGHT) / (len(clean) + len(clean) % num_rows),
                30 - 4 * (num_rows - 1) + 13 * row,
            )
            body.append(f'<rect x="{x:.1f}" y="{y}" width="10" height="10" fill="{colour}"/>' + _text(x + 14, y + 9, name, "start"))
    return _document(title, body)


def bar_chart(values: Mapping[str, float], title: str, unit: str = "") -> str:
    """An SVG document with one horizontal bar a value (none negative), in the order given."""
    largest = max(values.values(), default=0) or 1
    step = (HEIGHT - TOP - 12) / max(len(values), 1)
    body = []
    for number, (name, value) in enumerate(values.items()):
        y, width = TOP + number * step, value / largest * (WIDTH - 210)
        body.append(f'<rect x="140" y="{y:.1f}" width="{width:.1f}" height="{min(step * 0.7, 22):.1f}" fill="var(--c0)"/>')
        body += [
            _text(132, y + min(step * 0.5, 15), name, "end"),
            _text(146 + width, y + min(step * 0.5, 15), f"{value:.3g} {unit}", "start"),
        ]
    return _document(title, body)


def _document(title: str, body: list[str]) -> str:
    name = escape(title)
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="tandem-chart" role="img" {size}>'
    return (
        "\n".join([head, f"<title>{name}</title>", _STYLE, f'<text class="title" x="{LEFT}" y="20">{name}</text>', *body, "</svg>"]) + "\n"
    )


def _on_axis(y: float | None, log_y: bool) -> float | None:
    """The position on the axis: the value, or its decimal logarithm; None for what has no place there."""
    if y is None or not math.isfinite(y) or (log_y and y <= 0):
        return None
    return math.log10(y) if log_y else y


def _runs(points: Sequence[Point]) -> list[list[tuple[float, float]]]:
    """The stretches of a line without gaps."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is None:
            runs.append([])
        else:
            runs[-1].append((x, y))
    return [run for run in runs if run]


def _run(points: list[tuple[float, float]], colour: str) -> str:
    if len(points) == 1:
        return f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3" fill="{colour}"/>'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>'


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """The map from [low, high] to [start, end]; an empty interval goes to the middle."""
    return lambda value: start + ((value - low) / (high - low) if high > low else 0.5) * (end - start)


def _ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers around [low, high], the first at or below `low`, the last at or above `high`."""
    if high <= low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * unit for unit in (1, 2, 2.5, 5, 10) if power * unit >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Whole powers of ten, as exponents, at most seven of them."""
    first, last = math.floor(low), math.ceil(high)
    every = max(1, -(-(last - first) // 6))
    return [float(exponent) for exponent in range(first, last + every, every)]


def _grid_line(y: float, label: str) -> str:
    line = f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--grid)"/>'
    return line + _text(LEFT - 6, y + 4, label, "end")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
