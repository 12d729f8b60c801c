"""Text of the model, the data, the settings and the folder's name is shown, and never run or made into markup."""

import json
import re
import shutil

import pytest
import yaml

from tandem.report.page import embedded, page, page_data, write_report
from tandem.report.runs import run_folders
from tandem.report.samples import Budget
from tests.report.runs import embedded_data, made_run, real_run

EVIL = [
    "<script>window.hit=1</script>",
    "</script><script>window.hit=1</script>",
    "<!--<script>window.hit=1//",
    "<img src=x onerror=window.hit=1>",
    '"><svg onload=window.hit=1>',
    "javascript:window.hit=1",
    "{{script}}{{data}}",
    "'); window.hit=1; ('",
    "\u2028window.hit=1\u2029",
    "<style>body{display:none}</style>",
    "]]><iframe srcdoc='<script>parent.hit=1</script>'></iframe>",
]
FIELDS = (
    "row_id",
    "data_source",
    "prompt_text",
    "prompt_rendered",
    "ground_truth",
    "response_text",
    "grade_reason",
    "finish_reason",
    "note",
)


def no_markup_but_ours(page) -> None:
    assert page.evaluate("window.hit") is None
    assert page.evaluate("document.scripts.length") == 2
    assert page.evaluate("document.querySelectorAll('iframe, object, embed, style ~ style, main style, main script').length") == 0
    sources = page.evaluate("[...document.images].map(image => image.src)")
    assert all(re.match(r"data:image/(png|jpeg|gif|webp);base64,", source) for source in sources)
    handlers = "[...document.querySelectorAll('*')].filter(e => [...e.attributes].some(a => a.name.startsWith('on'))).length"
    assert page.evaluate(handlers) == 0


@pytest.mark.parametrize("evil", EVIL)
def test_stored_scripts_are_shown_as_text(opened, tmp_path, evil) -> None:
    run = made_run(tmp_path / "run", token_texts=[evil] * 6, **dict.fromkeys(FIELDS, evil))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["recipe"] = config["model"]["path"] = evil
    config[evil] = evil
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    with (run / "metrics.jsonl").open("a") as file:  # a name that no writer of ours lets through
        file.write(json.dumps({"step": 5, f"time/{evil}_s": 1.0, evil: 2.0}) + "\n")
    named = tmp_path / evil.replace("/", "_")[:100]
    shutil.copytree(run, named)
    path = write_report(run_folders([named, run]), tmp_path / "report.html")
    with opened(path) as page:
        no_markup_but_ours(page)
        seen = page.locator("main").text_content()
        assert seen.count(evil) > 10
        assert page.locator(".response").first.text_content() == evil * 6
        assert named.name in page.title().replace("\n", " ") or "\u2028" in evil
        page.fill("#search", evil.replace("\u2028", "").replace("\u2029", ""))
        page.select_option("#further", evil)
        page.get_by_text("As rendered").first.click()
        no_markup_but_ours(page)


@pytest.mark.parametrize("name", ["x' onerror='window.hit=1", "../../../../secret.png", "a" * 32 + ".svg", "a" * 32 + ".png"])
def test_a_pictures_name_leads_to_nothing_outside_its_folder(opened, tmp_path, name) -> None:
    (tmp_path / "secret.png").write_bytes(b"\x89PNG\r\n\x1a\nsecret")
    run = made_run(tmp_path / "run", images=[name])
    (run / "rollouts" / "images").mkdir()
    (run / "rollouts" / "images" / ("a" * 32 + ".svg")).write_text("<svg xmlns='http://www.w3.org/2000/svg' onload='window.hit=1'/>")
    path = write_report(run_folders([run]), tmp_path / "report.html")
    assert embedded_data(path.read_text())["runs"][0]["rollouts"]["images"] == {}
    with opened(path) as page:
        no_markup_but_ours(page)
        assert "picture not kept" in page.locator(".pictures").inner_text()


def test_a_script_that_came_in_all_the_same_does_not_run(browser, tmp_path) -> None:
    """The policy in the page: a script that is not ours, byte for byte, is refused, and so is any request."""
    path = write_report(run_folders([real_run(tmp_path)]), tmp_path / "report.html")
    injected = "<script>window.hit=1</script><img src=x onerror=window.hit=1><img src='http://127.0.0.1:9/x.png'></main>"
    path.write_text(path.read_text().replace("</main>", injected))
    tab = browser.new_page()
    refused, asked = [], []
    tab.on("console", lambda message: refused.append(message.text))
    tab.on("requestfinished", lambda request: asked.append(request.url))
    tab.goto(path.as_uri())
    assert tab.evaluate("window.hit") is None
    assert tab.locator(".sample").count() == 4, "our own script runs"
    assert sum("Content Security Policy" in text for text in refused) >= 3
    assert [url for url in asked if url.startswith("http")] == []
    tab.close()


def test_whatever_the_text_its_json_ends_nowhere_too_early() -> None:
    data = {"text": EVIL, "number": [float("nan"), float("inf"), 1.5], "broken": "\ud800", "key": {"</script>": "&lt;"}}
    text = embedded(data)
    assert "<" not in text
    again = json.loads(text)
    assert again["text"] == EVIL
    assert again["number"] == [None, None, 1.5]
    assert again["key"] == data["key"]
    text.encode("utf-8")


def test_the_page_as_a_file_may_not_connect_anywhere_and_a_live_one_to_its_server_only(tmp_path) -> None:
    runs = run_folders([real_run(tmp_path)])
    policy = {live: re.search(r'Policy" content="([^"]*)"', page(page_data(runs, Budget(), live)))[1] for live in (False, True)}
    assert policy[False].startswith("default-src 'none'; script-src 'sha256-") and "connect" not in policy[False]
    assert "connect-src 'self'" in policy[True]
    assert all("unsafe" not in text and "*" not in text for text in policy.values())
