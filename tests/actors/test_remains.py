"""What a killed run leaves in shared memory, and what tells that Ray is gone."""

import socket
import subprocess
import sys
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil
import pytest

from tandem.actors import cluster, remains
from tandem.errors import RunError
from tandem.run import launch
from tandem.sync.shared_memory import SHARED_MEMORY

MAKE_ONE = """
import pathlib
import sys
import time
logs = pathlib.Path(sys.argv[1]) / "logs"
from multiprocessing.shared_memory import SharedMemory
from tandem.actors.remains import noted
with noted(pathlib.Path(sys.argv[1])):
    segment = SharedMemory(create=True, size=4096)
    if sys.argv[2] == "while":
        while segment.name not in "".join(path.read_text() for path in logs.glob("*.json")):
            time.sleep(0.1)
        print(segment.name, flush=True)
        input()
print(segment.name, flush=True)
input()
"""


@pytest.mark.parametrize("killed", ["while", "after"])
def test_segments_of_a_killed_process_are_removed_by_the_next_and_those_of_one_that_runs_are_not(killed: str, tmp_path: Path) -> None:
    """It may be killed while it makes them."""
    (tmp_path / "logs").mkdir()
    other = SharedMemory(create=True, size=4096)
    command = [sys.executable, "-c", MAKE_ONE, str(tmp_path), killed]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout
        name = maker.stdout.readline().strip()
        assert remains.remove(tmp_path) == []
        trackers = psutil.Process(maker.pid).children()
        for process in [*trackers, maker]:  # the tracker, which would remove it, dies too when a run's session is killed
            process.kill()
        maker.wait()
    assert (SHARED_MEMORY / name).exists()
    assert remains.remove(tmp_path) == [name]
    assert not (SHARED_MEMORY / name).exists()
    assert remains.remove(tmp_path) == [] and list((tmp_path / "logs").iterdir()) == []
    assert (SHARED_MEMORY / other.name).exists()
    other.close()
    other.unlink()


def test_a_segment_of_the_same_name_that_somebody_has_made_since_stays(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "logs").mkdir()
    first = SharedMemory(create=True, size=4096)
    monkeypatch.setattr(remains, "shared_memory_of", lambda processes: {SHARED_MEMORY / first.name})  # not what other tests hold
    remains._note(tmp_path)
    first.close()
    first.unlink()
    record = next((tmp_path / "logs").iterdir())
    record.write_text(record.read_text().replace('"pid": ', '"pid": 9999999'))
    blocker = SharedMemory(create=True, size=4096)  # so that the number of the file is not given out again
    second = SharedMemory(first.name, create=True, size=4096)
    assert remains.remove(tmp_path) == []
    for segment in (blocker, second):
        segment.close()
        segment.unlink()


def test_a_record_that_another_generator_has_removed_meanwhile_is_no_error(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(remains, "shared_memory_of", lambda processes: set())
    remains._note(tmp_path)
    [record] = (tmp_path / "logs").iterdir()
    monkeypatch.setattr(remains, "find", lambda identity: record.unlink())
    assert remains.remove(tmp_path) == []


def test_a_record_on_a_disk_that_has_become_read_only_does_not_hide_why_the_run_ended(tmp_path: Path, monkeypatch, caplog) -> None:
    record = tmp_path / "logs" / f"shared_memory_{socket.gethostname()}_1.json"
    record.parent.mkdir()
    record.write_text('{"pid": 999999999, "created": 0.0, "files": {}}')

    def refuse(path: Path) -> None:
        raise OSError(30, "Read-only file system", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        assert remains.remove(tmp_path) == []
    assert "Read-only file system" in caplog.text and record.exists()
    assert remains.remove(tmp_path) == [] and not record.exists()


def test_a_segment_that_goes_while_it_is_noted_is_no_error(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(remains, "shared_memory_of", lambda processes: {SHARED_MEMORY / "tandem-test-gone"})
    remains._note(tmp_path)
    assert '"files": {}' in next((tmp_path / "logs").iterdir()).read_text()


def test_a_process_of_ray_that_died_ends_the_run_at_once_and_is_named(monkeypatch) -> None:
    """Ray itself would notice after a minute, and end the terminal's process without a word."""
    with subprocess.Popen(["sleep", "60"]) as service:
        process = psutil.Process(service.pid)
        service.kill()
        service.wait()
        monkeypatch.setattr(cluster, "services", lambda: [("gcs_server", process)])
        with pytest.raises(RunError, match="a process of Ray died: gcs_server"):
            launch._watch(None, None, None, lambda: False)
        assert launch._watch(None, None, None, lambda: True) is None
