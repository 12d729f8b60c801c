"""What of a run comes on the page: within the budget, nothing of interest lost, old files read, plan beside measurement."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tandem.errors import UserError
from tandem.report.compare import metric_figures, setting_differences
from tandem.report.curves import curves_of, thinned
from tandem.report.measured import measured_of
from tandem.report.page import ROWS_SCRIPTS, SCRIPTS, WEB, script_text, write_report
from tandem.report.runs import run_folder, run_folders
from tandem.report.samples import Budget, levels, rollouts_of, spread
from tandem.report.warnings import warnings_of
from tandem.track.metrics import MetricsLog
from tandem.track.rollouts import as_rows, read_table, rollout_files, write_rollouts
from tests.report.runs import REAL_RUN, made_run, real_run


def groups_of(run: Path, **budget: int) -> list[dict]:
    return rollouts_of(run_folder(run), Budget(**budget))["groups"]


@pytest.mark.parametrize("most", [8, 50, 100, 1000])
def test_a_budget_of_samples_holds_and_groups_stay_whole(tmp_path, most) -> None:
    run = made_run(tmp_path / "run", num_steps=20, num_groups=8, num_samples=2)
    groups = groups_of(run, num_samples=most)
    assert {len(group["samples"]) for group in groups} == {2}
    assert 2 * len(groups) <= most
    assert 2 * len(groups) >= min(320, most * 0.7)
    if most > 8:
        assert {groups[0]["step"], groups[-1]["step"]} == {1, 20}


def test_what_people_look_for_is_kept_of_each_step(tmp_path) -> None:
    run = made_run(tmp_path / "run", num_steps=3, num_groups=30, num_samples=2)
    kept = groups_of(run, num_samples=30)
    for step, path in rollout_files(run).items():
        rows = as_rows(read_table(path))
        means = [np.abs(np.subtract(row["logprobs_train"], row["logprobs_rollout"])).mean() for row in rows]
        here = {group["number"]: group for group in kept if group["step"] == step}
        assert rows[int(np.argmax(means))]["group"] in here
        totals = [sum(row["reward"] for row in rows if row["group"] == number) for number in range(30)]
        kept_totals = [sum(sample["reward"] for sample in group["samples"]) for group in here.values()]
        assert {min(totals), max(totals)} <= set(kept_totals)


def test_texts_that_are_too_long_leave_groups_out_but_not_all(tmp_path) -> None:
    run = made_run(tmp_path / "run", num_steps=2, num_groups=5, response_text="x" * 1000)
    assert len(groups_of(run, text_bytes=2 * 3 * 2 * 1000 * 2)) == 4
    assert len(groups_of(run, text_bytes=1)) == 2


def test_spread_keeps_the_ends_and_what_is_important() -> None:
    steps = list(range(1, 101))
    assert spread(steps, 100) == steps
    assert spread(steps, 5, important={42, 43}) == [1, 26, 42, 43, 100]
    assert spread(steps, 1) == [100]
    assert max(np.diff(spread(steps, 12))) <= 11


def test_tokens_and_their_differences_come_back_from_their_bytes(tmp_path) -> None:
    texts = ["a", "", "角", "\U0001f9ee", "\n", "long" * 100]
    run = made_run(tmp_path / "run", num_steps=1, num_groups=1, num_samples=1, token_texts=texts)
    (sample,) = groups_of(run)[0]["samples"]
    lengths = list(base64.b64decode(sample["lengths"]))
    assert lengths[:5] == [1, 0, 1, 2, 1], "lengths are those of JavaScript, in UTF-16"
    assert sample["tokens"].startswith("a角\U0001f9ee\nlonglong")
    assert sum(lengths) == len(sample["tokens"].encode("utf-16-le")) // 2
    (row,) = as_rows(read_table(rollout_files(run)[1]))
    difference_R = np.abs(np.subtract(row["logprobs_train"], row["logprobs_rollout"]))
    again_R = 10.0 ** (np.frombuffer(base64.b64decode(sample["levels"]), np.uint8) / 25.5 - 8)
    assert again_R == pytest.approx(difference_R, rel=0.05)
    assert sample["fidelity"] == pytest.approx(difference_R.mean(), rel=1e-4)
    assert sample["worst"] == [int(difference_R.argmax()), pytest.approx(difference_R.max(), rel=1e-4)]


def test_levels_have_an_end_on_both_sides() -> None:
    assert levels(np.array([0.0, 1e-12, 1e-8, 1.0, 100.0, 1e9])).tolist() == [0, 0, 0, 204, 255, 255]


def test_a_difference_that_is_no_number_is_the_worst(tmp_path) -> None:
    run = made_run(tmp_path / "run", num_steps=1, num_groups=20, num_samples=1)
    path = rollout_files(run)[1]
    rows = [{**row, "also": list(row["also"].items())} for row in as_rows(read_table(path))]
    rows[13]["logprobs_train"][2] = float("nan")
    write_rollouts(run, 1, [{name: value for name, value in row.items() if name != "step"} for row in rows])
    kept = {group["number"]: group["samples"][0] for group in groups_of(run, num_samples=4)}
    assert kept[13]["worst"] == [2, 1e9]


def test_a_run_of_an_older_version_has_its_page(tmp_path) -> None:
    run = real_run(tmp_path)
    newer = ["group", "prompt_rendered", "prompt_tokens", "images", "ground_truth", "token_texts", "also", "length_penalty", "kl_penalty"]
    for path in rollout_files(run).values():
        pq.write_table(pq.read_table(path).drop_columns(newer), path)
    old, new = groups_of(run), groups_of(REAL_RUN)
    assert [(g["step"], g["row"], len(g["samples"])) for g in old] == [(g["step"], g["row"], len(g["samples"])) for g in new]
    assert [s["reward"] for g in old for s in g["samples"]] == [s["reward"] for g in new for s in g["samples"]]
    write_report(run_folders([run]), tmp_path / "report.html")


def test_a_run_that_has_only_begun_has_a_page(tmp_path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("recipe: demo\n")
    assert write_report(run_folders([tmp_path / "run"]), tmp_path / "report.html").stat().st_size > 10_000


def test_a_long_curve_keeps_its_peaks_its_gaps_and_its_order() -> None:
    points = [(float(step), 0.0) for step in range(10_000)]
    points[1234], points[7777] = (1234.0, 5.0), (7777.0, -3.0)
    kept = thinned(points)
    assert len(kept) <= 1000
    assert {(1234.0, 5.0), (7777.0, -3.0)} <= set(kept)
    assert kept == sorted(kept)
    gaps = thinned([(float(step), None) for step in range(5000)])
    assert 0 < len(gaps) <= 1000 and {value for _, value in gaps} == {None}
    assert curves_of([{"step": 1, "a": 1.0}, {"step": 2}, {"step": 3, "a": None}]) == {"a": [(1, 1.0), (3, None)]}


def test_plan_and_measurement_stand_side_by_side() -> None:
    run = run_folder(REAL_RUN)
    rows = {row["what"]: row for row in measured_of(run)["rows"]}
    lines = [json.loads(line) for line in (REAL_RUN / "metrics.jsonl").read_text().splitlines()]
    tokens = rows["Tokens a step"]
    assert tokens["planned"] == 6 * 4 * (96 + 24)
    assert tokens["measured"] == max(line["tokens/prompt"] + line["tokens/response"] for line in lines if "tokens/prompt" in line)
    assert tokens["measured"] <= tokens["planned"]
    assert rows["Memory of a device, peak"]["measured"] == max(line.get("memory/device_peak_bytes", 0) for line in lines)


def test_warnings_name_their_steps(tmp_path) -> None:
    run = made_run(tmp_path / "run")
    assert warnings_of(run_folder(run)) == []
    log = MetricsLog(run)
    for step in range(5, 9):
        log.append({"step": step, "fidelity/logprob_abs_diff_mean": 6e-4 if step > 5 else 4e-4, "reward/mixed_groups": float(step != 7)})
    log.append({"step": 9, "grad_norm": float("nan")})
    told = {warning["metric"]: (warning["steps"], warning["count"]) for warning in warnings_of(run_folder(run))}
    assert told == {  # the demo's limit is 1e-3
        "nonfinite": ([9, 9], 1), "fidelity/logprob_abs_diff_mean": ([6, 8], 3), "reward/mixed_groups": ([7, 7], 1),
    }  # fmt: skip


def test_settings_that_differ_and_figures_of_metrics(tmp_path) -> None:
    made, real = made_run(tmp_path / "made"), real_run(tmp_path)
    differing = {row["key"]: row["values"] for row in setting_differences(run_folders([made, real]))}
    assert differing["rollout.n"] == ["8", "4"]
    assert "rollout.tp" not in differing and "run_dir" not in differing
    figures = metric_figures(run_folder(made))["reward/mean"]
    assert figures == pytest.approx((0.1, 0.25, 0.1, 0.4))


def test_folders_that_are_no_runs_or_one_run_twice_are_told(tmp_path) -> None:
    run = made_run(tmp_path / "run")
    for paths, told in (
        ([tmp_path / "none"], "no such folder"),
        ([tmp_path], "none of config.yaml"),
        ([run, tmp_path / "." / "run"], "twice"),
    ):
        with pytest.raises(UserError, match=told):
            run_folders(paths)


def test_the_modules_of_the_page_have_no_name_twice_and_all_are_on_it() -> None:
    assert {file.name for file in WEB.iterdir() if file.name.endswith(".js")} == {*SCRIPTS, *ROWS_SCRIPTS}
    for scripts, fewest in ((SCRIPTS, 60), (ROWS_SCRIPTS, 10)):
        names = re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", script_text(scripts), re.MULTILINE)
        assert len(names) > fewest
        assert sorted(names) == sorted(set(names))
    for scripts, place, name in [(s, place, name) for s in (SCRIPTS, ROWS_SCRIPTS) for place, name in enumerate(s)]:
        text = (WEB / name).read_text()
        for imported, module in re.findall(r"^import \{ (.*) \} from \"\./(.*)\";$", text, re.MULTILINE):
            assert module in scripts[:place], f"{name} uses {module}, which comes later"
            exported = re.findall(r"^export (?:async )?(?:function|const) (\w+)", (WEB / module).read_text(), re.MULTILINE)
            assert set(imported.split(", ")) <= set(exported), name
