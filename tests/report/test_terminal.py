"""Runs and samples in a terminal."""

import json

import pytest

from tandem.cli.compare import compare
from tandem.cli.inspect import rollouts
from tandem.cli.report import report
from tandem.errors import UserError
from tandem.report.terminal import plain
from tests.report.runs import REAL_RUN, made_run, real_run


def test_no_control_character_of_a_model_reaches_the_terminal(tmp_path, capsys) -> None:
    evil = "\x1b[2J\x1b]0;title\x07\x9b31m\rover\u202etxt[red]bold[/red]"
    assert plain(evil).plain == "\\u001b[2J\\u001b]0;title\\u0007\\u009b31m\\u000dover\\u202etxt[red]bold[/red]"
    run = made_run(tmp_path / "run", 1, 1, 1, response_text=evil, prompt_text=evil, grade_reason=evil, ground_truth=evil)
    rollouts(run)
    out = capsys.readouterr().out
    assert "\\u001b[2J" in out and "[red]bold[/red]" in out
    assert not set("\x1b\x07\x9b\r\u202e") & set(out)


def test_samples_are_found_by_step_row_and_order(capsys) -> None:
    def heads(**asked) -> list[str]:
        rollouts(REAL_RUN, count=99, **asked)
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]

    assert len(heads()) == 6 and all(head.startswith("step 8,") for head in heads())
    assert len(heads(row="2")) == len(heads(row="rows.parquet:2")) == 3
    rewards = [float(head.rpartition(" ")[2]) for head in heads(step=6, order="lowest")]
    assert rewards == sorted(rewards) and len(rewards) == 6


@pytest.mark.parametrize(("asked", "told"), [({"step": 77}, "1 to 8"), ({"row": "77"}, "no row 77"), ({"order": "best"}, "fidelity")])
def test_samples_that_are_not_there_are_told(asked, told) -> None:
    with pytest.raises(UserError, match=told):
        rollouts(REAL_RUN, **asked)


def test_two_runs_side_by_side(tmp_path, capsys) -> None:
    made = made_run(tmp_path / "made")
    compare(made, REAL_RUN)
    out = capsys.readouterr().out
    settings = next(line.split() for line in out.splitlines() if line.strip().startswith("rollout.n "))
    assert settings == ["rollout.n", "8", "4"]
    reward = next(line.split() for line in out.splitlines() if line.strip().startswith("reward/mean"))
    lines = [json.loads(line) for line in (REAL_RUN / "metrics.jsonl").read_text().splitlines()]
    real = [line["reward/mean"] for line in lines if "reward/mean" in line]
    assert [float(value) for value in reward[1:5]] == pytest.approx([0.1, 0.25, real[0], sum(real[-5:]) / 5], rel=1e-3)
    assert float(reward[5]) == pytest.approx(sum(real[-5:]) / 5 - 0.25, rel=1e-2)
    compare(made, REAL_RUN, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["settings"]["rollout.n"] == ["8", "4"]
    assert told["metrics"]["val/accuracy"][0] is None
    with pytest.raises(UserError, match="twice"):
        compare(made, made)


def test_a_report_lands_where_it_is_said(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    real, made = real_run(tmp_path), made_run(tmp_path / "made")
    for runs, out, path in (
        ([real], None, "real/report.html"),
        ([real, made], None, "report.html"),
        ([real], tmp_path / "x.html", "x.html"),
    ):
        report(runs, out)
        assert "".join(capsys.readouterr().out.split()).endswith(path)
        assert "</html>" in (tmp_path / path).read_text()
    with pytest.raises(UserError, match="--out FILE"):
        report([real], tmp_path / "no" / "folder" / "x.html")
