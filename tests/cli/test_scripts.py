"""The launch scripts: what they hand over, from any folder, and how they end where the device or the program is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.config.load import load

FOLDER = Path(__file__).parents[2] / "examples" / "grpo_trainer"
SCRIPTS = {"run_qwen3_5_35b_megatron.sh": "qwen3_5_35b_a3b", "run_qwen3_5_122b_a10b_megatron.sh": "qwen3_5_122b_a10b"}


def stub(path: Path, line: str) -> Path:
    """A `tandem` that is this shell command."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


def run(script: Path, *arguments: str, cwd: Path, path: str = "/usr/bin:/bin", **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: text for name, text in os.environ.items() if name not in ("DEVICE", "PATH")} | {"XDG_CACHE_HOME": str(cwd / "cache")}
    return subprocess.run(["bash", str(script), *arguments], capture_output=True, text=True, cwd=cwd, env=kept | {"PATH": path} | env)


@pytest.fixture(params=SCRIPTS)
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The script in a checkout without an environment, in a folder whose name has a space."""
    script = tmp_path / "my checkout" / "examples" / "grpo_trainer" / request.param
    script.parent.mkdir(parents=True)
    script.write_text((FOLDER / request.param).read_text())
    return script


def test_arguments_and_exit_code_pass_through_unchanged(copy: Path, tmp_path: Path) -> None:
    stub(copy.parents[2] / ".venv" / "bin" / "tandem", "printf '%s\\n' \"$@\"; exit 3")
    done = run(copy, "run_dir=a b", "data.train_files=['/x','/y']", "--dry-run", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stdout.splitlines() == ["train", SCRIPTS[copy.name], "run_dir=a b", "data.train_files=['/x','/y']", "--dry-run"]


def test_a_link_to_the_script_finds_the_checkout(copy: Path, tmp_path: Path) -> None:
    stub(copy.parents[2] / ".venv" / "bin" / "tandem", "echo from the checkout")
    (tmp_path / "go.sh").symlink_to(copy)
    assert run(tmp_path / "go.sh", cwd=tmp_path).stdout == "from the checkout\n"


def test_without_an_environment_the_one_on_path_is_used_and_without_any_it_says_so(copy: Path, tmp_path: Path) -> None:
    stub(tmp_path / "bin" / "tandem", "echo from path")
    assert run(copy, cwd=tmp_path, path=f"{tmp_path}/bin:/usr/bin:/bin").stdout == "from path\n"
    done = run(copy, cwd=tmp_path)
    assert done.returncode == 2
    assert "make setup" in done.stderr


@pytest.fixture
def real(tmp_path: Path) -> dict[str, str]:
    """A search path whose `tandem` is the real one."""
    stub(tmp_path / "bin" / "tandem", f'exec {sys.executable} -m tandem "$@"')
    return {"path": f"{tmp_path}/bin:/usr/bin:/bin"}


def test_a_dry_run_shows_the_whole_npu_run_on_a_machine_without_one(real: dict[str, str], tmp_path: Path) -> None:
    script = FOLDER / "run_qwen3_5_122b_a10b_megatron.sh"
    done = run(script, "trainer.total_steps=2", "--dry-run", cwd=tmp_path, DEVICE="npu", TP="1", **real)
    assert done.returncode == 0, done
    (tmp_path / "again.yaml").write_text(done.stdout)
    expected = load("qwen3_5_122b_a10b", ["trainer.total_steps=2"], {"DEVICE": "npu", "TP": "1"})
    assert load(str(tmp_path / "again.yaml"), env={}) == expected
    lines = done.stdout.splitlines()
    assert "# environment of every process on npu:" in lines
    assert {"#   HCCL_CONNECT_TIMEOUT=5400", "#   CPU_AFFINITY_CONF=1", "#   OMP_NUM_THREADS=1"} <= set(lines)


@pytest.mark.parametrize(("device", "parts"), [("npu", ["device npu", "torch_npu"]), ("tpu", ["DEVICE", "npu, gpu, cpu"])])
def test_a_device_that_is_not_here_ends_in_one_message(device: str, parts: list[str], real: dict[str, str], tmp_path: Path) -> None:
    done = run(FOLDER / "run_qwen3_5_35b_megatron.sh", cwd=tmp_path, DEVICE=device, **real)
    assert done.returncode == 2
    assert done.stderr.count("tandem: ") == done.stderr.count("\n  fix: ") == 1
    assert all(part in done.stderr for part in parts)
    assert (done.stdout, (tmp_path / "runs").exists()) == ("", False)
