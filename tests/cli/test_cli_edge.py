"""How a run ends is how the process ends: exit code, one message, and the traceback in the log."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import launch_code, tandem_with_launch

MAKE_FOLDER = "Path(config.run_dir).mkdir(parents=True)\n"


def test_a_fault_of_the_run_is_1_with_message_and_log(tmp_path: Path) -> None:
    ended = tandem_with_launch(
        MAKE_FOLDER + "raise RunError('generator 1 died', 'out of memory', 'lower x')", "train", "demo", "run_dir=r", cwd=tmp_path
    )
    assert ended.code == 1
    assert "tandem: generator 1 died\n  why: out of memory\n  fix: lower x\n  log: r/logs/error.log\n" in ended.err
    assert "Traceback" not in ended.err
    assert "Traceback" in (tmp_path / "r" / "logs" / "error.log").read_text()


def test_a_users_fault_found_during_the_run_is_2(tmp_path: Path) -> None:
    ended = tandem_with_launch(MAKE_FOLDER + "raise UserError('a', 'b', 'c')", "train", "demo", "run_dir=r", cwd=tmp_path)
    assert (ended.code, ended.err) == (2, "tandem: a\n  why: b\n  fix: c\n")
    assert "UserError" in (tmp_path / "r" / "logs" / "error.log").read_text()


def test_a_bug_is_1_with_one_line_and_the_traceback_of_its_cause_in_the_log(tmp_path: Path) -> None:
    body = MAKE_FOLDER + "try:\n    {}['lost']\nexcept KeyError as e:\n    raise ValueError('two\\nlines') from e"
    ended = tandem_with_launch(body, "train", "demo", "run_dir=r", cwd=tmp_path)
    assert ended.code == 1
    assert ended.err == "tandem: unexpected ValueError: two lines\n  log: r/logs/error.log\n"
    log = (tmp_path / "r" / "logs" / "error.log").read_text()
    assert "KeyError: 'lost'" in log
    assert "ValueError: two" in log


def test_a_bug_before_there_is_a_folder_is_logged_in_the_users_cache(tmp_path: Path) -> None:
    ended = tandem_with_launch("raise ValueError('x')", "train", "demo", "run_dir=r", cwd=tmp_path)
    path = Path(ended.err.rpartition("log: ")[2].strip())
    assert path == tmp_path / "cache" / "tandem" / "error.log"
    assert "ValueError: x" in path.read_text()


@pytest.mark.parametrize("how", ["raise KeyboardInterrupt", "sys.exit(signal.SIGTERM)"])
def test_a_stop_is_3(how: str, tmp_path: Path) -> None:
    ended = tandem_with_launch(how, "train", "demo", cwd=tmp_path)
    assert ended.code == 3
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_3_and_what_the_run_holds_is_closed(number: signal.Signals, tmp_path: Path) -> None:
    body = f"""
        try:
            os.kill(os.getpid(), {int(number)})
            time.sleep(30)
        finally:
            Path("closed").write_text("")
    """
    ended = tandem_with_launch(body, "train", "demo", cwd=tmp_path)
    assert ended.code == 3
    assert ended.seconds < 10
    assert (tmp_path / "closed").exists()
    assert "Traceback" not in ended.err


def test_a_reader_that_went_away_is_no_traceback(tmp_path: Path) -> None:
    command = f"{sys.executable} -m tandem train demo --dry-run | head -1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", ["plan demo", "train demo --dry-run", "--help"])
def test_the_code_behind_a_pipe_that_closed_is_that_of_a_stop(arguments: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -m tandem {arguments} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout, done.stderr) in (("3\n", ""), ("0\n", ""))  # 0: all of it was written before `true` ended


def test_a_run_whose_reader_went_away_is_stopped_as_by_a_signal(tmp_path: Path) -> None:
    """`tandem train ... | head`: the step is finished and saved, and one line says why."""
    body = """
        with real.StopSignals() as stop:
            console.on_reader_gone = stop.count_one
            for number in range(200):
                console.emit(Note(f"step {number}"))
                time.sleep(0.02)
                if stop.count:
                    break
            console.emit(Note("said into the void"))
        Path("stopped_after").write_text(str(number))
        raise KeyboardInterrupt("nobody reads what it says any more")
    """
    (tmp_path / "run.py").write_text(launch_code(body))
    command = f"{sys.executable} run.py train demo | head -3; echo code ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[2] / 'src'}"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, timeout=60, env=environment)
    assert done.stdout.splitlines()[-1] == "code 3"
    assert done.stderr == "tandem: stopped: nobody reads what it says any more\n"
    assert int((tmp_path / "stopped_after").read_text()) < 100


def test_a_folder_that_was_removed_is_told(tmp_path: Path) -> None:
    """Every relative path would begin there."""
    command = f"mkdir {tmp_path}/gone && cd {tmp_path}/gone && rmdir {tmp_path}/gone && exec {sys.executable} -m tandem doctor --quick"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    ended = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.endswith("paths of files and runs begin there\n  fix: cd to one that exists\n")
