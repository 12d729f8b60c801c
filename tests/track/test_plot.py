"""Charts as SVG text: right coordinates, gaps kept."""

import itertools
from xml.etree import ElementTree

import pytest

from tandem.track.plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, bar_chart, line_chart

SVG = "{http://www.w3.org/2000/svg}"


def lines_of(svg: str) -> list[list[tuple[float, float]]]:
    found = ElementTree.fromstring(svg).iter(f"{SVG}polyline")
    return [[tuple(map(float, point.split(","))) for point in line.attrib["points"].split()] for line in found]  # type: ignore[misc]


def texts_of(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_straight_line_is_drawn_straight_from_corner_to_corner() -> None:
    (line,) = lines_of(line_chart({"reward": [(float(k), 0.1 * k) for k in range(11)]}, "Reward"))
    assert line[0] == (LEFT, HEIGHT - BOTTOM)
    assert line[-1] == (WIDTH - RIGHT, TOP)
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in itertools.pairwise(line)]
    assert max(slopes) - min(slopes) < 0.02


def test_axis_labels_are_round_and_cover_the_values() -> None:
    texts = texts_of(line_chart({"reward": [(0, 0.13), (37, 0.87)]}, "Reward"))
    assert {"0", "0.2", "0.8", "1"} <= set(texts)
    assert {"10", "20", "30"} <= set(texts)


def test_a_logarithmic_axis_is_even_in_powers_of_ten() -> None:
    (line,) = lines_of(line_chart({"diff": [(k, 10.0**-k) for k in range(1, 5)]}, "diff", log_y=True))
    heights = [y for _, y in line]
    steps = [b - a for a, b in itertools.pairwise(heights)]
    assert max(steps) - min(steps) < 0.2
    assert steps[0] > 10


def test_gaps_stay_gaps_and_single_points_are_seen() -> None:
    points = [(0, 1.0), (1, 2.0), (2, None), (3, float("nan")), (4, 3.0), (5, None), (6, 1.0), (7, 2.0)]
    svg = line_chart({"reward": points}, "Reward")
    assert [len(line) for line in lines_of(svg)] == [2, 2]
    assert len(list(ElementTree.fromstring(svg).iter(f"{SVG}circle"))) == 1
    logarithmic = line_chart({"diff": [(0, 1.0), (1, 0.0), (2, 1.0)]}, "diff", log_y=True)
    assert lines_of(logarithmic) == []
    assert len(list(ElementTree.fromstring(logarithmic).iter(f"{SVG}circle"))) == 2


@pytest.mark.parametrize(
    "series", [{}, {"a": []}, {"a": [(0, None)]}, {"a": [(3, 0.5)]}, {"a": [(0, 2.0), (1, 2.0)]}, {"a": [(0, 1e-30), (1, 1e30)]}]
)
@pytest.mark.parametrize("log_y", [False, True])
def test_unusual_series_give_a_well_formed_chart_inside_its_frame(series: dict, log_y: bool) -> None:
    svg = line_chart(series, "x", log_y=log_y)
    for line in lines_of(svg):
        assert all(LEFT <= x <= WIDTH - RIGHT and TOP <= y <= HEIGHT - BOTTOM for x, y in line)
    assert "nan" not in svg


def test_several_seeds_are_named_and_have_colours_of_their_own() -> None:
    svg = line_chart({f"seed {k}": [(0, k), (1, k + 1)] for k in range(3)}, "Reward")
    colours = [line.attrib["stroke"] for line in ElementTree.fromstring(svg).iter(f"{SVG}polyline")]
    assert len(set(colours)) == 3
    assert {"seed 0", "seed 1", "seed 2"} <= set(texts_of(svg))
    assert all(svg.count(f"--c{k}:") == 2 for k in range(3))  # light and dark


def test_bars_are_as_long_as_their_values() -> None:
    svg = bar_chart({"rollout": 2.0, "update": 1.0, "nothing": 0.0}, "Seconds", "s")
    widths = [float(bar.attrib["width"]) for bar in ElementTree.fromstring(svg).iter(f"{SVG}rect")]
    assert widths == [pytest.approx(widths[0]), pytest.approx(widths[0] / 2, abs=0.1), 0]
    ElementTree.fromstring(bar_chart({}, "Seconds"))
