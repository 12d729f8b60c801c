"""What a run leaves on disk: metrics, rollouts, summary."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tandem.errors import UserError
from tandem.track.metrics import MetricsLog, read_metrics
from tandem.track.notes import append_note, read_notes
from tandem.track.rollouts import (
    SCHEMA,
    as_rows,
    logprob_differences,
    num_rollouts,
    read_table,
    remove_rollouts_after,
    rollout_files,
    write_rollouts,
)
from tandem.track.summary import duration, summarize, summary_table


def sample(**changes: object) -> dict:
    row = {
        "row_id": "train.parquet:7",
        "data_source": "digits",
        "group": 0,
        "sample": 0,
        "prompt_text": "which digit?",
        "prompt_rendered": "<|im_start|>user\nwhich digit?<|im_end|>\n<|im_start|>assistant\n<think>\n",
        "prompt_tokens": 12,
        "images": [],
        "ground_truth": "7",
        "response_text": "<think>\n7</think>",
        "token_ids": np.array([1, 2, 3]),
        "token_texts": ["7", "</think>", "<|im_end|>"],
        "logprobs_rollout": np.array([-0.5, -1.0, -2.0], np.float32),
        "logprobs_train": None,
        "reward": 0.9,
        "accuracy": 1.0,
        "format": 0.0,
        "also": [],
        "length_penalty": 0.0,
        "kl_penalty": 0.0,
        "advantage": -0.25,
        "finish_reason": "stop",
        "version": 4,
        "grade_reason": "",
    }
    return row | changes


def test_a_number_that_is_not_finite_is_null_and_counted(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "run")
    log.append({"step": 1, "reward/mean": math.nan, "kl/ref": -math.inf, "grad_norm": np.float32(0.5), "loss/policy": None})
    log.append({"step": 2, "reward/mean": 0.25})
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    strict = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert strict[0] == {"step": 1, "reward/mean": None, "kl/ref": None, "grad_norm": 0.5, "loss/policy": None, "nonfinite": 2}
    assert strict[1] == {"step": 2, "reward/mean": 0.25}
    assert log.num_nonfinite == 2
    assert read_metrics(tmp_path / "run") == strict
    assert read_metrics(tmp_path) == []


def test_metrics_survive_a_process_that_dies_at_once(tmp_path: Path) -> None:
    code = f"import os; from tandem.track.metrics import MetricsLog\nMetricsLog({str(tmp_path)!r}).append({{'step': 1}}); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    MetricsLog(tmp_path).append({"step": 2})
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]


@pytest.mark.parametrize("metrics", [{"Reward Mean": 1.0}, {"reward/mean": "0.5"}, {"reward/mean": [1.0]}])
def test_a_metric_with_a_wrong_name_or_type_is_refused(metrics: dict, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        MetricsLog(tmp_path).append(metrics)


def test_rollouts_keep_values_types_and_row_ids(tmp_path: Path) -> None:
    rows = [sample(), sample(sample=1, row_id="train.parquet:8", logprobs_train=[-0.5, -1.0, -2.0])]
    path = write_rollouts(tmp_path, 12, rows)
    assert path == tmp_path / "rollouts" / "step_000012.parquet"
    table = pq.read_table(path)
    assert table.schema.equals(SCHEMA)
    assert table["row_id"].to_pylist() == ["train.parquet:7", "train.parquet:8"]
    assert table["step"].to_pylist() == [12, 12]
    assert table["token_ids"].to_pylist() == [[1, 2, 3]] * 2
    assert table["logprobs_train"].to_pylist() == [None, [-0.5, -1.0, -2.0]]
    assert os.listdir(path.parent) == [path.name]


def test_a_file_of_absent_values_has_the_same_types_as_any_other(tmp_path: Path) -> None:
    nothing = dict.fromkeys(sample())
    assert pq.read_table(write_rollouts(tmp_path, 1, [nothing])).schema.equals(SCHEMA)
    assert pq.read_table(write_rollouts(tmp_path, 2, [])).schema.equals(SCHEMA)


@pytest.mark.parametrize("wrong", [{"rewrd": 1.0}, None])
def test_a_misspelt_or_missing_column_is_refused_not_filled(wrong: dict | None, tmp_path: Path) -> None:
    row = sample(**wrong) if wrong else {name: value for name, value in sample().items() if name != "reward"}
    with pytest.raises(AssertionError, match="rew"):
        write_rollouts(tmp_path, 1, [row])


def test_files_of_rollouts_are_in_the_order_of_steps_and_nothing_else_is_one(tmp_path: Path) -> None:
    assert rollout_files(tmp_path) == {}
    paths = {step: write_rollouts(tmp_path, step, [sample()]) for step in (1_000_000, 9, 100)}
    (tmp_path / "rollouts" / "step_000005.tmp").touch()
    (tmp_path / "rollouts" / "step_x.parquet").touch()
    assert list(rollout_files(tmp_path).items()) == sorted(paths.items())


def run_of(num_steps: int) -> list[dict]:
    """Rewards 1, 2, ... and a validation before, between and after."""
    steps = [{"step": k, "reward/mean": float(k), "tokens_per_s": 100.0 * k, "time/step_s": 1.0 / k} for k in range(1, num_steps + 1)]
    return [{"step": 0, "val/accuracy": 0.5}, *steps, {"step": 2, "val/accuracy": 0.55}, {"step": num_steps, "val/accuracy": 0.625}]


def test_summary_compares_before_with_after_and_first_with_last() -> None:
    summary = summarize(run_of(20), {"rollout": 3.0}, {"export": "r/export"})
    assert (summary["steps"], summary["val_accuracy_before"], summary["val_accuracy_after"]) == (20, 0.5, 0.625)
    assert (summary["reward_first5"], summary["reward_last5"]) == (3.0, 18.0)
    tokens, seconds = 20 * 100.0, sum(1 / k for k in range(1, 21))  # each step makes 100 tokens
    assert summary["tokens_per_s"] == pytest.approx(tokens / seconds)
    json.dumps(summary)


def test_summary_says_nothing_where_the_metrics_say_nothing() -> None:
    summary = summarize([{"step": 0, "val/accuracy": 0.5}, {"step": 1, "reward/mean": None}], {}, {})
    assert summary == {
        "steps": 0,
        "val_accuracy_before": 0.5,
        "val_accuracy_after": None,
        "reward_first5": None,
        "reward_last5": None,
        "tokens_per_s": None,
        "phase_seconds": {},
    }
    assert [row[0] for row in summary_table(summary).rows] == ["steps", "held-out accuracy before"]


def test_summary_table_shows_every_figure() -> None:
    table = summary_table(summarize(run_of(20), {"rollout": 3.0, "update": 12.34}, {"report": "r/report.html", "other": "x"}))
    rows = dict(table.rows)
    assert rows["held-out accuracy after"] == "0.625"
    assert rows["time in rollout"] == "3.0 s"
    assert rows["time in update"] == "12 s"
    assert rows["other"] == "x"
    assert table.below == (("report", "r/report.html"),)
    assert "stopped" not in rows and "stopped" not in dict(summary_table({"stopped": False}).rows)
    assert "resume=auto" in dict(summary_table({"stopped": True}).rows)["stopped"]


def test_durations_are_written_as_people_read_them() -> None:
    told = {0.41: "0.4 s", 59.6: "60 s", 61: "1 min 01 s", 3599.4: "59 min 59 s", 3600: "1 h 00 min", 90061: "25 h 01 min"}
    assert {seconds: duration(seconds) for seconds in told} == told


def test_going_on_forgets_later_steps_and_a_torn_line_and_names_a_broken_one(tmp_path):
    log = MetricsLog(tmp_path)
    for step in (1, 2, 3):
        log.append({"step": step, "reward/mean": 0.5})
    with log.path.open("a") as file:
        file.write('{"step": 4, "rew')
    assert [row["step"] for row in log.cut_after(2)] == [1, 2]
    assert log.path.read_text() == '{"step": 1, "reward/mean": 0.5}\n{"step": 2, "reward/mean": 0.5}\n'
    (tmp_path / "rollouts").mkdir()
    for name in ("step_000002", "step_000003", "step_old"):
        (tmp_path / "rollouts" / f"{name}.parquet").touch()
    remove_rollouts_after(tmp_path, 2)
    assert sorted(path.stem for path in (tmp_path / "rollouts").iterdir()) == ["step_000002", "step_old"]
    log.path.write_text('{"step": 1}\nbroken\n{"step": 2}\n')
    with pytest.raises(UserError, match="line 2 of"):
        read_metrics(tmp_path)


def test_samples_without_trainer_log_probs_have_no_difference_and_shift_no_other(tmp_path: Path) -> None:
    ours = [None, [-0.5, -1.5, -2.0], None, [-0.25, math.nan, -3.0]]
    path = write_rollouts(tmp_path, 1, [sample(sample=k, logprobs_train=values) for k, values in enumerate(ours)])
    got = logprob_differences(read_table(path))
    assert [d is None for d in got] == [True, False, True, False]
    assert got[1].tolist() == [0.0, 0.5, 0.0]
    assert got[3][0] == 0.25 and math.isnan(got[3][1]) and got[3][2] == 1.0


def test_files_of_a_version_with_fewer_columns_are_read(tmp_path: Path) -> None:
    path = write_rollouts(tmp_path, 1, [sample(also=[("short", 0.5)])])
    assert as_rows(read_table(path, ["also"])) == [{"also": {"short": 0.5}}]
    pq.write_table(pq.read_table(path).drop_columns(["also", "token_texts", "group"]), path)
    (row,) = as_rows(read_table(path))
    assert (row["also"], row["token_texts"], row["group"], row["row_id"]) == ({}, None, None, "train.parquet:7")


def test_a_damaged_rollout_file_is_named(tmp_path: Path) -> None:
    path = write_rollouts(tmp_path, 1, [sample()])
    path.write_bytes(path.read_bytes()[:-20])
    for read in (read_table, num_rollouts):
        with pytest.raises(UserError, match=r"step_000001\.parquet"):
            read(path)


def test_notes_are_read_in_order_and_a_half_written_one_is_none(tmp_path: Path) -> None:
    assert read_notes(tmp_path) == []
    append_note(tmp_path, "first\nline")
    append_note(tmp_path, "zweite ✓")
    with (tmp_path / "logs" / "notes.jsonl").open("a") as file:
        file.write('{"time": 1, "te')
    assert read_notes(tmp_path) == ["first\nline", "zweite ✓"]
    with (tmp_path / "logs" / "notes.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(UserError, match="no note"):
        read_notes(tmp_path)
