"""Ctrl-C at any moment: the run ends with exit code 3 and leaves no process and no shared memory. Real runs, a real signal."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tandem.sync.shared_memory import shared_memory_prefix
from tandem.track.metrics import read_metrics
from tests.run.marked import MARK, marked

MOMENTS = {  # what the terminal has shown when the signal comes
    "while Ray starts": "starting the cluster",
    "while Megatron starts": "starting the training ranks",
    "while vLLM starts": "starting the generators",
    "in the warm start": "warm start: step",
    "in the middle of a step": "step 2 ",
}


def start(run_dir: Path, mark: str, *overrides: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "tandem", "train", "demo", f"run_dir={run_dir}", *overrides]
    environment = {**os.environ, MARK: mark}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def wait_for_line(process: subprocess.Popen, text: str, limit_s: float) -> None:
    ends = time.monotonic() + limit_s
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
        assert time.monotonic() < ends, f"{text!r} did not appear in time"
    raise AssertionError(f"the run ended before it showed {text!r}")


def assert_nothing_left(mark: str, run_dir: Path) -> None:
    ends = time.monotonic() + 5  # Ray's own reaper may need a moment
    while (left := marked(mark)) and time.monotonic() < ends:
        time.sleep(0.2)
    names = [f"{process.pid} {' '.join(process.cmdline())[:80]}" for process in left]
    for process in left:
        process.kill()
    assert not names, names
    assert [name for name in os.listdir("/dev/shm") if name.startswith(shared_memory_prefix(run_dir))] == []


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_leaves_nothing_behind(moment, tmp_path):
    mark = uuid.uuid4().hex
    steps = ["warm_start.max_steps=0"] if "step" in moment else []
    process = start(tmp_path / "run", mark, *steps)
    try:
        wait_for_line(process, MOMENTS[moment], 120)
        time.sleep(1)  # into what was announced
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 3, output
        assert "Traceback" not in output
    finally:
        process.kill()
        assert_nothing_left(mark, tmp_path / "run")
    if "step" in moment:
        saved = [path.name for path in (tmp_path / "run" / "checkpoints").glob("step_*")]
        assert len(saved) == 1, "the step that was running is saved first"
        validated = [row["step"] for row in read_metrics(tmp_path / "run") if "val/accuracy" in row]
        assert validated == [0] and not (tmp_path / "run" / "export").exists(), "what is not due then is the resumed run's"
