"""`tandem inspect data`: lengths as the processor counts them, what the filter leaves out, every bad row, pictures on a page."""

import pytest

from tandem.cli.inspect import data as inspect_data
from tandem.report.look import histogram
from tests.data.files import encoded, picture, record, write

LONG = "<script>window.hit=1</script><img src=x onerror=window.hit=1> " + "long " * 40


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> str:
    rows = [
        record("<image>How many points are there?", [encoded(picture(48, 32))]),
        record("Short?", []),
        record(LONG, []),
        record("<image>Broken?", [b"no picture"]),
    ]
    return write(tmp_path_factory.mktemp("data") / "rows.parquet", rows)


def own_lengths(tiny_model) -> list[int]:
    """Of the three good rows, as transformers' own processor counts them in one call."""
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(tiny_model)
    contents = [[{"type": "image", "image": picture(48, 32)}, {"type": "text", "text": "How many points are there?"}]]
    contents += [[{"type": "text", "text": text}] for text in ("Short?", LONG)]
    options = {"tokenize": True, "return_dict": True, "return_tensors": "pt", "add_generation_prompt": True, "enable_thinking": True}
    return [processor.apply_chat_template([{"role": "user", "content": c}], **options)["input_ids"].shape[1] for c in contents]


@pytest.fixture
def told(capsys):
    """What the command says of a file, in one line."""

    def run(*arguments) -> str:
        inspect_data(*arguments)
        return " ".join(capsys.readouterr().out.split())

    return run


def test_lengths_and_what_the_filter_leaves_out(file, tiny_model, told) -> None:
    lengths = own_lengths(tiny_model)
    limit = sorted(lengths)[1]
    settings = [f"model.path={tiny_model}", f"data.max_prompt_length={limit}"]
    out = told(file, settings)
    assert f"tokens: {min(lengths)} to {max(lengths)}, median {limit}" in out
    assert f"1 rows are longer than data.max_prompt_length={limit} and would be left out" in out
    assert "3 rows, 1 pictures, 1 bad rows" in out
    assert "rows.parquet: row 3" in out
    assert "picture: 48 x 32 PNG" in out
    cut = told(file, [*settings, "data.filter_overlong=false", "data.truncation=left"])
    assert "would be cut (data.truncation=left)" in cut


def test_without_a_model_lengths_are_not_known(file, told) -> None:
    out = told(file, None, 1)
    assert "model.path=FOLDER" in out and "tokens a prompt" not in out
    assert "How many points" in out and "Short?" not in out


def test_the_page_has_pictures_and_runs_nothing(opened, told, file, tiny_model, tmp_path) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="axe is not installed: pip install tandem-rl[dev]")
    from pathlib import Path

    told(file, [f"model.path={tiny_model}", "data.max_prompt_length=50"], 3, tmp_path / "rows.html")
    for width in (390, 1280):
        with opened(tmp_path / "rows.html", width) as page:
            assert page.locator(".rows > li").count() == 3
            assert page.evaluate("document.querySelector('.pictures img').naturalWidth") == 48
            page.select_option("#order", "longest")
            assert "window.hit=1</script>" in page.locator(".rows > li").first.inner_text()
            page.get_by_label("too long only").check()
            assert page.locator(".rows > li").count() == 1
            page.fill("#search", "points")
            assert page.locator(".rows > li").count() == 0
            page.fill("#search", "")
            assert page.evaluate("window.hit") is None and page.evaluate("document.scripts.length") == 2
            assert page.evaluate("document.documentElement.scrollWidth") == width
            page.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text())
            found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            assert not [(fault["id"], [node["html"] for node in fault["nodes"]]) for fault in found["violations"]]


def test_a_histogram_counts_every_length_once() -> None:
    lengths = [5, 5, 6, 14, 99]
    lines = histogram(lengths)[1:]
    assert sum(int(line.split()[3]) for line in lines) == len(lengths)
    assert int(lines[0].split()[0]) == 5 and int(lines[-1].split()[2]) >= 99
    assert histogram([]) == []
    assert histogram([7]) == ["tokens a prompt:", f"{7:>8} - {7:<8} {1:>7} {'#' * 40}"]
