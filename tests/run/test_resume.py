"""A run that was killed goes on as if it had not been: real processes, kill -9, bit for bit."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tandem.actors.janitor import RUN, processes_of
from tandem.actors.train_rank import TrainRank
from tandem.config.checkpointfolder import find_checkpoint, read_checkpoint
from tandem.errors import UserError
from tests.cli.commands import tandem
from tests.run.equal_runs import differences, metrics_of
from tests.run.marked import command_of

SETTINGS = (
    *("trainer.total_steps=4", "trainer.save_freq=2", "trainer.test_freq=2", "data.val_max_rows=8", "rollout.n=4"),
    *("data.train_batch_size=8", "algorithm.kl.coef=0.01", "warm_start.max_steps=40", "trainer.deterministic=true"),
)


def start(*settings: str, cwd: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "tandem", "train", "demo", *settings]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def wait_until(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    ends = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < ends, f"not in time: {what}"
        time.sleep(0.1)


def wait_for(process: subprocess.Popen, path: Path, limit_s: float) -> None:
    ends = time.monotonic() + limit_s
    while not path.exists():
        assert process.poll() is None and time.monotonic() < ends, f"{path} did not appear"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    ended = tandem("train", "demo", "run_dir=run", *SETTINGS, "--quiet", cwd=folder, timeout=300)
    assert ended.code == 0, ended.err
    return folder / "run"


def test_a_run_whose_rank_and_then_itself_were_killed_ends_as_one_to_which_nothing_happened(whole: Path, tmp_path: Path) -> None:
    """First it goes on by itself from the last checkpoint, then when it is asked to."""
    run = tmp_path / "run"
    process = start("run_dir=run", *SETTINGS, "trainer.max_restarts=1", cwd=tmp_path)
    wait_for(process, run / "rollouts" / "step_000003.parquet", 240)
    ranks = [child for child in psutil.Process(process.pid).children(recursive=True) if "TrainRank" in command_of(child)]
    ranks[0].kill()
    wait_for(process, run / "rollouts" / "step_000004.parquet", 240)
    assert "Traceback" in (run / "logs" / "failure_1.log").read_text()
    mark = next(child.environ()[RUN] for child in psutil.Process(process.pid).children(recursive=True) if RUN in child.environ())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    resumed = start("run_dir=run", "resume=auto", *SETTINGS, "--quiet", cwd=tmp_path)
    wait_until(lambda: not processes_of(mark), 30, "Ray's agents and all else of the killed run are gone")
    assert resumed.wait(300) == 0, (run / "logs" / "error.log").read_text()
    assert differences(run, whole) == []
    assert any(row.get("grad_norm", 0) > 0 for row in metrics_of(whole))
    assert len(list(whole.glob("rollouts/*.parquet"))) == 4 and list(whole.glob("export/*.safetensors")), "there is something to compare"
    again = tandem("train", "demo", "run_dir=run", "resume=auto", *SETTINGS, cwd=tmp_path)
    assert (again.code, again.out) == (0, "finished: all 4 steps of run were done before\n")


def test_a_branch_in_another_folder_can_be_gone_on_with_by_itself(whole: Path, tmp_path: Path) -> None:
    """With a reference policy that a warm start made: it must be there too."""
    longer = (*SETTINGS, "trainer.total_steps=5", "trainer.save_freq=1", "trainer.keep_last=1", "trainer.keep_best=true")
    ended = tandem("train", "demo", f"resume={whole}", "run_dir=branch", *longer, "--json", cwd=tmp_path, timeout=300)
    assert ended.code == 0, ended.err
    branch = tmp_path / "branch"
    shards = [
        {
            name: file["blake3"]
            for name, file in json.loads((run / "checkpoints/reference/manifest.json").read_text())["files"].items()
            if name.endswith(".distcp")
        }
        for run in (branch, whole)
    ]
    assert shards[0] == shards[1], "the branch has the reference of the run that it came from"
    assert find_checkpoint("auto", branch).step == 5
    assert [row["step"] for row in metrics_of(branch) if "grad_norm" in row] == [5]


def test_bytes_that_have_changed_are_told_by_the_rank_that_compares_them(whole: Path, tmp_path: Path) -> None:
    """Sizes, which are looked at before anything starts, do not show it."""
    shutil.copytree(whole / "checkpoints" / "step_000004", tmp_path / "step_000004")
    checkpoint = read_checkpoint(tmp_path / "step_000004")
    shards = {name: digest for name, digest in checkpoint.digests.items() if name.endswith(".distcp")}
    ranks = [SimpleNamespace(rank=rank) for rank in range(2)]
    for rank in ranks:
        TrainRank.verify(rank, str(checkpoint.path), shards, 2)
    changed = checkpoint.path / sorted(shards)[1]
    content = bytearray(changed.read_bytes())
    content[1000] ^= 1
    changed.write_bytes(content)
    TrainRank.verify(ranks[0], str(checkpoint.path), shards, 2)  # the other rank's share
    with pytest.raises(UserError, match=f"the checkpoint is damaged: {changed}"):
        TrainRank.verify(ranks[1], str(checkpoint.path), shards, 2)
    read_checkpoint(checkpoint.path)
