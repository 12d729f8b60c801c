"""Charts and the page made of them: right coordinates, gaps kept, everything from outside escaped, nothing fetched."""

import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tandem.track.metrics import MetricsLog
from tandem.track.plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, bar_chart, line_chart
from tandem.track.report import write_report
from tandem.track.rollouts import write_rollouts
from tandem.track.summary import summarize, summary_table
from tests.track.test_track_files import run_of, sample

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


EVIL = "</td></svg><script>alert(1)</script><img src=http://evil/x onerror=alert(2)>&\"'"


class Page(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def evil_run(tmp_path: Path) -> Path:
    run_dir = tmp_path / "run<b>"
    log = MetricsLog(run_dir)
    for row in run_of(4):
        log.append({**row, "fidelity/logprob_abs_diff_mean": 1e-6, "time/rollout_s": 0.5})
    (run_dir / "config.yaml").write_text(f"recipe: {EVIL}\n")
    texts = dict.fromkeys(("row_id", "prompt_text", "response_text", "finish_reason", "grade_reason"), EVIL)
    write_rollouts(run_dir, 4, [sample(**texts, sample=k) for k in range(30)])
    return run_dir


def page_of(run_dir: Path) -> tuple[Page, str]:
    text = write_report(run_dir, summary_table(summarize(run_of(4), {EVIL: 1.0}, {"export": EVIL}))).read_text(encoding="utf-8")
    return Page(text), text


def test_nothing_from_outside_becomes_markup_and_all_of_it_is_shown(evil_run: Path) -> None:
    page, _ = page_of(evil_run)
    assert not [tag for tag, _ in page.tags if tag in ("script", "img", "b", "iframe", "object")]
    assert not [attributes for _, attributes in page.tags if any(name.startswith("on") for name in attributes)]
    assert page.text.count(EVIL) == 2 + 1 + 20 * 5  # summary, settings, five texts of each of the 20 samples


def test_the_page_fetches_nothing(evil_run: Path) -> None:
    page, text = page_of(evil_run)
    assert not [a for tag, a in page.tags if "src" in a or "href" in a or tag == "link"]
    assert not re.search(r"url\(|@import", text)
    assert ("meta", {"http-equiv": "Content-Security-Policy", "content": "default-src 'none'; style-src 'unsafe-inline'"}) in page.tags


def test_the_page_has_the_curves_and_follows_the_readers_colours(evil_run: Path) -> None:
    page, text = page_of(evil_run)
    assert sum(tag == "svg" for tag, _ in page.tags) == 7
    for title in ("Reward", "Accuracy", "KL to the reference", "trainer, generator", "Seconds a step, by phase"):
        assert title in page.text
    assert text.count("prefers-color-scheme: dark") >= 2


def test_a_run_that_has_only_begun_has_a_page_too(tmp_path: Path) -> None:
    page = Page(write_report(tmp_path, summary_table({})).read_text())
    assert "no values yet" in page.text
    assert "none yet" in page.text
