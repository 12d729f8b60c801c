"""The example in each command's help works: run where that is quick, with --dry-run where there is one, else parsed by the real command."""

import gzip
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tandem.cli.main import app
from tests.cli.commands import tandem
from tests.cli.test_cli_bad_input import parquet, png, row

ROOT = typer.main.get_command(app)
REAL_RUN = Path(__file__).parents[1] / "report" / "real_run"
WHOLE = {"", "plan", "doctor", "report", "compare", "profile", "inspect", "inspect rollouts", "inspect data", "serve"}
DRY = {"train", "sft", "eval", "demo", "debug", "debug rollout-only", "debug train-only"}
# 16 ranks, a cluster, the hub, a run's checkpoint: others run these for real
PARSED = {"rehearse", "cluster", "cluster check", "data", "data geo3k", "export"}


class WrongUse(Exception):
    """The command line is not understood."""


def commands(command: Any = ROOT, path: str = "") -> dict[str, Any]:
    found = {path: command}
    for name, inner in getattr(command, "commands", {}).items():
        found |= commands(inner, f"{path} {name}".strip())
    return found


def example_of(path: str) -> list[str]:
    (line,) = re.findall(r"^ *Example: tandem (.*)$", commands()[path].help or "", re.MULTILINE)
    return shlex.split(line)


def parse(words: list[str]) -> dict[str, object]:
    """The parameters of the innermost command, as the real CLI reads these words. Raises WrongUse."""
    command, context, rest = ROOT, None, list(words)
    try:
        while hasattr(command, "commands"):
            context = command.make_context(command.name or "tandem", rest, parent=context)
            _, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        return command.make_context(command.name, rest, parent=context).params
    except Exception as error:
        if not hasattr(error, "format_message"):  # click's own, which typer has a copy of
            raise
        raise WrongUse(error.format_message()) from error


def test_each_command_has_its_way_to_be_tried() -> None:
    assert set(commands()) == WHOLE | DRY | PARSED


@pytest.mark.parametrize("path", sorted(commands()))
def test_the_example_is_one_of_its_own_command_and_is_understood(path: str) -> None:
    words = example_of(path)
    assert " ".join(words).startswith(path)
    parse(words)
    with pytest.raises(WrongUse, match="frobnicate"):
        parse([*words, "--frobnicate"])


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path) -> Path:
    """Two runs, a data file and a model, under the names that the examples use."""
    for name in ("demo-1", "demo-2"):
        shutil.copytree(REAL_RUN, tmp_path / "runs" / name)
    (tmp_path / "runs" / "demo-1" / "profile").mkdir()
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 5}]
    trace = gzip.compress(json.dumps({"traceEvents": events}).encode())
    (tmp_path / "runs" / "demo-1" / "profile" / "step_000002_rank_0.json.gz").write_bytes(trace)
    parquet(tmp_path / "train.parquet", [row(png())])
    (tmp_path / "DIR").symlink_to(tiny_model)
    return tmp_path


@pytest.mark.parametrize("path", sorted(WHOLE - {"serve"} | DRY))
def test_the_example_runs(path: str, folder: Path) -> None:
    words = example_of(path)
    ended = tandem(*words, *["--dry-run"] * (path in DRY), cwd=folder)
    assert ended.code == 0, ended
    assert ended.out.strip()


def test_the_example_of_serve_serves_until_ctrl_c(folder: Path) -> None:
    process = subprocess.Popen([sys.executable, "-m", "tandem", *example_of("serve")], cwd=folder, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.stdout.close()
