"""The page in a real browser: every panel shows what is in the run's files, filters find what is to be found, keys and phones work."""

import json
from collections import Counter

import pyarrow.parquet as pq
import pytest

from tandem.report.page import write_report
from tandem.report.runs import run_folders
from tandem.report.samples import Budget
from tandem.rewards.extract import said_answer
from tests.report.runs import REAL_RUN, made_run, real_run


@pytest.fixture(scope="module")
def real_page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return write_report(run_folders([real_run(folder)]), folder / "report.html")


@pytest.fixture(scope="module")
def samples() -> list[dict]:
    """Every sample of the real run, read without our reader."""
    files = sorted((REAL_RUN / "rollouts").glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def worst_difference(sample: dict) -> float:
    pairs = list(zip(sample["logprobs_train"], sample["logprobs_rollout"]))
    return sum(abs(a - b) for a, b in pairs) / len(pairs)


def listed(page) -> list[str]:
    """`step/group` of the groups that are listed, all of them."""
    while page.locator(".side > button").is_visible():
        page.locator(".side > button").click()
    return page.eval_on_selector_all(".groups button", "all => all.map(button => button.dataset.key)")


def test_every_panel_shows_a_real_run(opened, real_page, samples) -> None:
    steps = [json.loads(line) for line in (REAL_RUN / "metrics.jsonl").read_text().splitlines()]
    with opened(real_page) as page:
        rewards = [row["reward/mean"] for row in steps if "reward/mean" in row]
        assert page.locator(".chart", has=page.get_by_text("Reward", exact=True)).locator(".readout").inner_text() == (
            f"{rewards[0]:.3g} → {rewards[-1]:.3g}"
        )
        assert page.locator(".chart svg").count() >= 10
        assert page.locator("#time .columns g").count() == 8
        table = page.locator("#time table").inner_text()
        assert {"rollout", "reward", "update", "publish", "other"} <= set(table.split())
        assert page.get_by_text(f"All {len(samples)} samples of 8 steps.").is_visible()
        cards = page.locator(".sample")
        assert cards.count() == 4
        first = samples[-24]  # the newest step's first
        for text in (*first["response_text"].removeprefix("<think>\n").split(), first["grade_reason"], f"version {first['version']}"):
            assert text in cards.first.inner_text()
        assert "length:12" in cards.first.inner_text()
        assert cards.first.locator(".strip rect").count() >= 1
        assert first["ground_truth"] in page.locator(".prompt").inner_text()
        page.get_by_text("As rendered").click()
        assert "<|im_start|>user" in page.locator(".prompt details").inner_text()
        assert page.evaluate("document.querySelector('.pictures img').naturalWidth") > 0
        plan = json.loads((REAL_RUN / "plan.json").read_text())
        most = max(phase["total"] for phase in plan["host"].values())
        assert f"{most / 2**30:.1f} GiB" in page.locator("#plan").inner_text()
        assert page.locator(".config").inner_text().strip() == (REAL_RUN / "config.yaml").read_text().strip()
        assert "warm start: 60 steps" in page.locator("#warnings").inner_text()


def test_filters_find_what_the_files_say(opened, real_page, samples) -> None:
    groups = {(s["step"], s["group"]): [] for s in samples}
    for sample in samples:
        groups[sample["step"], sample["group"]].append(sample)
    keys = {f"{step}/{group}": of_group for (step, group), of_group in groups.items()}
    with opened(real_page) as page:
        page.select_option("#order", "fidelity")
        worst = max(keys, key=lambda key: max(map(worst_difference, keys[key])))
        assert listed(page)[0] == worst
        page.select_option("#order", "lowest")
        rewards = [sum(s["reward"] for s in keys[key]) for key in listed(page)]
        assert rewards == sorted(rewards) and len(rewards) == len(keys)
        page.select_option("#order", "highest")
        assert listed(page)[0] in [key for key in keys if sum(s["reward"] for s in keys[key]) == max(rewards)]
        page.fill("#search", "POINTS")
        expected = {key for key, g in keys.items() if any("points" in s["prompt_text"].lower() for s in g)}
        assert expected and set(listed(page)) == expected
        page.fill("#search", "no such words")
        assert page.locator(".side [role=status]").inner_text() == "no group like this"
        page.fill("#search", "")
        page.select_option("#source", "demo/digits")
        assert set(listed(page)) == {key for key, g in keys.items() if g[0]["data_source"] == "demo/digits"} != set(keys)


def most_said(group: list[dict]) -> str | None:
    counts = Counter(answer for s in group if (answer := said_answer(s["response_text"])) is not None)
    return counts.most_common(1)[0][0] if counts else None


def test_rows_whose_answer_changed_since_a_step_are_found(opened, real_page, samples) -> None:
    groups: dict[tuple, list[dict]] = {}
    for sample in samples:
        groups.setdefault((sample["step"], sample["group"], sample["row_id"]), []).append(sample)
    for since in (2, 4):
        changed = set()
        for (step, number, row), group in groups.items():
            before = [key for key in groups if key[2] == row and key[0] <= since]
            if step > since and before and most_said(groups[max(before)]) != most_said(group):
                changed.add(f"{step}/{number}")
        assert changed
        with opened(real_page) as page:
            page.fill("#changed", str(since))
            assert set(listed(page)) == changed


def test_one_rows_answers_over_training_lead_to_its_other_visits(opened, real_page, samples) -> None:
    visits = sorted({(s["step"], s["group"]) for s in samples if s["row_id"] == "rows.parquet:2"})
    assert len(visits) > 1
    with opened(real_page) as page:
        page.fill("#search", "rows.parquet:2\n")  # the field drops the line's end; 2 is not 12
        page.locator(f'[data-key="{visits[0][0]}/{visits[0][1]}"]').click()
        assert page.locator(".detail table tbody tr").count() == len(visits)
        page.locator(".detail table button").last.click()
        assert page.locator(".detail h3").inner_text() == f"Step {visits[-1][0]}, rows.parquet:2"


def test_keys_alone_open_a_group_and_read_a_curve(opened, real_page) -> None:
    with opened(real_page) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the samples"
        button = page.locator(".groups button").nth(2)
        button.focus()
        page.keyboard.press("Enter")
        assert button.get_attribute("aria-pressed") == "true"
        assert page.evaluate("document.activeElement.tagName") == "H3"
        chart = page.locator(".chart", has=page.get_by_text("Reward", exact=True))
        chart.locator("svg").focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        reward = json.loads((REAL_RUN / "metrics.jsonl").read_text().splitlines()[2])["reward/mean"]
        assert chart.locator(".readout").inner_text() == f"step 2: {reward:.3g}"


def test_smoothing_and_further_metrics(opened, real_page) -> None:
    with opened(real_page) as page:
        raw = page.locator(".chart .line").count()
        page.evaluate("const s = document.getElementById('smoothing'); s.value = 0.5; s.dispatchEvent(new Event('input'))")
        assert page.locator(".chart .raw").count() == raw
        page.select_option("#further", "time/update_s")
        assert page.locator(".chart h3").first.inner_text() == "time/update_s"


@pytest.mark.parametrize(("width", "dark"), [(390, False), (768, True), (1280, False), (1280, True)])
def test_nothing_is_wider_than_the_screen_and_axe_finds_no_fault(opened, real_page, tmp_path, width, dark) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="axe is not installed: pip install tandem-rl[dev]")
    from pathlib import Path

    both = tmp_path / "both.html"
    write_report(run_folders([real_run(tmp_path), made_run(tmp_path / "made")]), both)
    for path in (real_page, both) if width == 1280 else (real_page,):
        with opened(path, width, dark) as page:
            assert page.evaluate("document.documentElement.scrollWidth") == width
            page.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text())
            found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            told = [(fault["id"], [node["html"][:120] for node in fault["nodes"][:3]]) for fault in found["violations"]]
            assert not told


def test_several_runs_are_compared(opened, tmp_path) -> None:
    runs = [made_run(tmp_path / "a" / "run"), made_run(tmp_path / "b" / "run", num_steps=6), real_run(tmp_path)]
    path = write_report(run_folders(runs), tmp_path / "report.html")
    with opened(path) as page:
        reward = page.locator(".chart", has=page.get_by_text("Reward", exact=True))
        assert reward.locator(".line").count() == 3
        assert reward.locator(".readout").inner_text().startswith("a/run: 0.1 → 0.4, b/run: 0.1 → 0.6, real: ")
        page.get_by_role("checkbox", name="b/run").uncheck()
        assert reward.locator(".line").count() == 2
        assert "rollout.n" in page.locator("#settings table").inner_text()
        page.select_option("#run", "real")
        assert "rows.parquet" in page.locator(".detail h3").inner_text()


def test_five_thousand_samples_stay_quick(opened, tmp_path) -> None:
    run = made_run(tmp_path / "large", num_steps=25, num_groups=25, num_samples=8, length=60)
    path = write_report(run_folders([run]), tmp_path / "report.html", Budget(num_samples=5000))
    with opened(path) as page:
        assert page.get_by_text("All 5,000 samples of 25 steps.").is_visible()
        paints = page.evaluate("performance.getEntriesByType('paint').map(entry => entry.startTime)")
        assert paints and max(paints) < 2000
        time_of = """([id, value, event]) => {
            const field = document.getElementById(id), began = performance.now();
            field.value = value;
            field.dispatchEvent(new Event(event, {bubbles: true}));
            document.body.getBoundingClientRect();
            return performance.now() - began;
        }"""
        for change in (["search", "w77", "input"], ["order", "fidelity", "change"], ["changed", "10", "input"], ["search", "", "input"]):
            assert min(page.evaluate(time_of, change) for _ in range(3)) < 300, change
